// BaseFingerprint: which weights a model has that adapters were trained beside: they are worth
// something beside these only. It depends on their values as fp32, in the model's order, and on
// nothing else: not on a run's precision, on tiers, or on how files are cut. A sample of them,
// which is read in moments, shows nearly every other base before any work; all of them, on their
// way through that work, show every one.
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

// Of a parameter's elements [first, first + count).
struct SampledRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
// Ascending, from the parameter's first element to its last; empty ones where it is small.
std::array<SampledRange, 4> sampled_ranges(std::uint64_t elements);

class BaseFingerprint {
 public:
  // The next values, [first, first + values.size()) of a parameter that has `elements`: units in
  // forward order, their parameters in theirs, without the gaps.
  void add(std::uint64_t elements, std::uint64_t first, std::span<const float> values);
  // 16 hexadecimal digits each.
  std::string all() const;
  std::string sample() const;

 private:
  swap::StreamHash all_;
  swap::StreamHash sample_;
};

// The weights that are to be a checkpoint's base.
struct AskedBase {
  std::string path;    // a file, an index or a folder
  std::string advice;  // what to do where they are others
};
// kInvalidArgument where a sample of them, a few KiB of each tensor, shows that the checkpoint's
// adapters were trained beside others. Ok where it holds none, or has no sample (FORMAT.md).
Status check_base_sample(const ModelWeights& weights, const StoredRun& stored,
                         const AskedBase& base);
// The checkpoint's adapters were trained beside others.
Error other_base(const AskedBase& base);

}  // namespace sluice::engine
