// TokenSampler: draws tokens from a model's logits.
//
// The distribution is transformers' (its warpers, in its order): logits divided by the temperature;
// all but the top_k largest removed (what equals the k-th stays); then the least probable ones are
// removed while their sum is at most 1 - top_p, the most probable one always staying; softmax of
// the rest. Temperature 0 is greedy: the largest logit, the first of several.
//
// In double, from numbers of SplitMix: a seed gives the same tokens for the same logits on every
// machine.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "aio/split_mix.h"

namespace sluice::engine {

struct SamplingOptions {
  double temperature = 1;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // 1: all
};

// kInvalidArgument, in terms of the command line.
Status validate(const SamplingOptions& options);

// Of each token; their sum is 1. Throws std::runtime_error where a logit is not a number.
std::vector<double> token_probabilities(std::span<const float> logits,
                                        const SamplingOptions& options);

class TokenSampler {
 public:
  TokenSampler(const SamplingOptions& options, std::uint64_t seed)
      : options_(options), random_(seed) {}

  std::int64_t next(std::span<const float> logits);

 private:
  const SamplingOptions options_;
  aio::SplitMix random_;
};

}  // namespace sluice::engine
