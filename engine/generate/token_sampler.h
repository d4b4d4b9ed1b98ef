// TokenSampler: draws tokens from a model's logits.
//
// The distribution is that of transformers, whose warpers run in this order. Logits are divided by
// the temperature. All but the top_k largest are removed; ties with the k-th stay. Then the least
// probable are removed while their sum is at most 1 - top_p; the most probable always stays. The
// rest goes through a softmax. Temperature 0 is greedy: the first of the largest logits.
//
// It computes in double with SplitMix random numbers: a seed gives the same tokens for the same
// logits on every machine.
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

// kInvalidArgument, in the command line's terms.
Status validate(const SamplingOptions& options);

// Each token's probability; the sum is 1. Throws std::runtime_error if a logit is NaN.
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
