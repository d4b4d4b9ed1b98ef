// Samplers: locate the k-th training or validation sequence in the tokens. Arithmetic only, no IO.
//
// A sequence of length T is a window of T + 1 tokens, with inputs and targets shifted by one.
// Windows begin T tokens apart, so every token is predicted once, and never cross the end of a
// range.
//
// ShuffledSampler (training): an epoch is every window once, in an order that depends only on
// (seed, epoch). Each epoch shifts the windows of each range by a different amount, so that window
// boundaries vary. For that, each range leaves T - 1 to 2T - 2 of its tokens unused, different ones
// each epoch (fewer if it has only one window). The whole state is one number, the samples drawn so
// far, and at(k) has random access: resuming means continuing to count.
//
// SequentialSampler (validation): every window in order, unshuffled, so that every evaluation uses
// the same batches.
//
// Threads: all const calls from any thread.
// Errors:  kInvalidArgument if no range has a window, with the number of available and required
//          tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"

namespace sluice::data {

// Tokens [begin, end) of one file of a corpus.
struct TokenRange {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t token_count() const { return end - begin; }
};

struct Sample {
  std::uint32_t file = 0;
  std::uint64_t first_token = 0;
  std::uint64_t epoch = 0;
};

class ShuffledSampler {
 public:
  struct Options {
    std::uint64_t sequence_tokens = 0;  // T
    std::uint64_t seed = 0;
  };
  // Ranges without a window are ignored.
  static Result<ShuffledSampler> create(std::span<const TokenRange> ranges, const Options& options);

  std::uint64_t samples_per_epoch() const { return samples_per_epoch_; }
  std::uint64_t sequence_tokens() const { return options_.sequence_tokens; }
  Sample at(std::uint64_t samples_drawn) const;

  // A hash of everything that at() depends on: a checkpoint's position identifies the same samples
  // only if this is equal. It covers the ranges, not their content: see TokenCorpus::fingerprint().
  std::uint64_t order_id() const;

 private:
  struct Windows {
    TokenRange range;
    std::uint64_t first_window;  // index among the windows of all ranges
    std::uint64_t slack_tokens;  // largest shift in an epoch
  };
  explicit ShuffledSampler(const Options& options) : options_(options) {}

  Options options_;
  std::vector<Windows> windows_;
  std::uint64_t samples_per_epoch_ = 0;
};

class SequentialSampler {
 public:
  static Result<SequentialSampler> create(std::span<const TokenRange> ranges,
                                          std::uint64_t sequence_tokens);

  std::uint64_t count() const { return count_; }
  std::uint64_t sequence_tokens() const { return sequence_tokens_; }
  Sample at(std::uint64_t index) const;  // index < count()

 private:
  struct Windows {
    TokenRange range;
    std::uint64_t first_window;
  };
  explicit SequentialSampler(std::uint64_t sequence_tokens) : sequence_tokens_(sequence_tokens) {}

  std::uint64_t sequence_tokens_;
  std::vector<Windows> windows_;
  std::uint64_t count_ = 0;
};

}  // namespace sluice::data
