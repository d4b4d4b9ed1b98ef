// BaseFingerprint: identifies the base weights that adapters were trained on; the adapters are
// useless with any other base. It depends only on the weights' values as fp32, in the model's
// order: not on a run's precision, on tiers, or on how files are split. The sample is read in
// moments, and detects nearly every other base before any work. The hash of all weights is computed
// while they are used, and detects every one.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/exchange/model_weights.h"
#include "swap/stream_hash.h"

namespace sluice::engine {

// Elements [first, first + count) of a parameter.
struct SampledRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
// In ascending order, from the parameter's first element to its last; empty ranges for small
// parameters.
std::array<SampledRange, 4> sampled_ranges(std::uint64_t elements);

class BaseFingerprint {
 public:
  // Adds the next values, [first, first + values.size()) of a parameter that has `elements`. Units
  // must come in forward order, with their parameters in order and without padding.
  void add(std::uint64_t elements, std::uint64_t first, std::span<const float> values);
  // Each is 16 hexadecimal digits.
  std::string all() const;
  std::string sample() const;

 private:
  swap::StreamHash all_;
  swap::StreamHash sample_;
};

// The weights given as a checkpoint's base.
struct ExpectedBase {
  std::string path;    // a file, an index or a folder
  std::string advice;  // what to do if they are a different base
};
// kInvalidArgument if a sample of the weights, a few KiB of each tensor, shows that the
// checkpoint's adapters were trained on another base. Ok if the checkpoint has no adapters or no
// sample (FORMAT.md).
Status check_base_sample(const ModelWeights& weights, const StoredRun& stored,
                         const ExpectedBase& base);
// The error if the checkpoint's adapters were trained on another base.
Error other_base(const ExpectedBase& base);

}  // namespace sluice::engine
