#include "engine/data/sampler.h"

#include <algorithm>
#include <string>

#include "aio/check.h"
#include "aio/split_mix.h"
#include "engine/data/permutation.h"

namespace sluice::data {
namespace {

// Each epoch has two random streams: the order of the windows, and their shifts.
std::uint64_t order_stream(std::uint64_t epoch) { return 2 * epoch; }
std::uint64_t shift_stream(std::uint64_t epoch) { return 2 * epoch + 1; }

bool has_window(const TokenRange& range, std::uint64_t sequence_tokens) {
  return range.token_count() > sequence_tokens;
}

Status check_ranges(std::span<const TokenRange> ranges, std::uint64_t sequence_tokens) {
  if (sequence_tokens == 0) {
    return Error(ErrorCode::kInvalidArgument, "a sequence needs at least 1 token");
  }
  std::uint64_t total = 0;
  std::uint64_t longest = 0;
  for (const TokenRange& range : ranges) {
    SLUICE_CHECK(range.begin <= range.end, "a range that does not end before it begins");
    total += range.token_count();
    longest = std::max(longest, range.token_count());
  }
  if (longest > sequence_tokens) return {};
  return Error(ErrorCode::kInvalidArgument,
               "the data has " + std::to_string(total) + " tokens, at most " +
                   std::to_string(longest) + " of them contiguous, but a sequence of " +
                   std::to_string(sequence_tokens) + " needs " +
                   std::to_string(sequence_tokens + 1) +
                   " contiguous tokens: prepare more text, or shorten the sequences");
}

// The entry that contains `window`: the last whose first window is not after it.
template <typename Windows>
const Windows& holder_of(const std::vector<Windows>& windows, std::uint64_t window) {
  const auto after =
      std::upper_bound(windows.begin(), windows.end(), window,
                       [](std::uint64_t value, const auto& it) { return value < it.first_window; });
  return *(after - 1);
}

}  // namespace

Result<ShuffledSampler> ShuffledSampler::create(std::span<const TokenRange> ranges,
                                                const Options& options) {
  const std::uint64_t length = options.sequence_tokens;
  SLUICE_RETURN_IF_ERROR(check_ranges(ranges, length));
  ShuffledSampler sampler(options);
  for (const TokenRange& range : ranges) {
    if (!has_window(range, length)) continue;
    const std::uint64_t tokens = range.token_count();
    // One window fewer than would fit leaves space to shift them.
    const std::uint64_t count = std::max<std::uint64_t>(1, (tokens - length) / length);
    sampler.windows_.push_back({range, sampler.samples_per_epoch_, tokens - 1 - count * length});
    sampler.samples_per_epoch_ += count;
  }
  return sampler;
}

Sample ShuffledSampler::at(std::uint64_t samples_drawn) const {
  const std::uint64_t epoch = samples_drawn / samples_per_epoch_;
  const Permutation order(samples_per_epoch_, options_.seed, order_stream(epoch));
  const std::uint64_t window = order.at(samples_drawn % samples_per_epoch_);
  const Windows& in = holder_of(windows_, window);
  // One generator per range, so that its shift does not depend on the number of earlier ranges.
  aio::SplitMix shifts(aio::SplitMix(options_.seed, shift_stream(epoch)).next(), in.range.file);
  const std::uint64_t shift = shifts.below(in.slack_tokens + 1);
  return {
      .file = in.range.file,
      .first_token = in.range.begin + shift + (window - in.first_window) * options_.sequence_tokens,
      .epoch = epoch};
}

std::uint64_t ShuffledSampler::order_id() const {
  std::uint64_t id = aio::SplitMix(options_.seed, options_.sequence_tokens).next();
  for (const Windows& in : windows_) {
    for (const std::uint64_t part :
         {std::uint64_t{in.range.file}, in.range.begin, in.range.end, in.first_window}) {
      id = aio::SplitMix(id ^ part).next();
    }
  }
  return id;
}

Result<SequentialSampler> SequentialSampler::create(std::span<const TokenRange> ranges,
                                                    std::uint64_t sequence_tokens) {
  SLUICE_RETURN_IF_ERROR(check_ranges(ranges, sequence_tokens));
  SequentialSampler sampler(sequence_tokens);
  for (const TokenRange& range : ranges) {
    if (!has_window(range, sequence_tokens)) continue;
    sampler.windows_.push_back({range, sampler.count_});
    sampler.count_ += (range.token_count() - 1) / sequence_tokens;
  }
  return sampler;
}

Sample SequentialSampler::at(std::uint64_t index) const {
  SLUICE_CHECK(index < count_, "an index of the validation data");
  const Windows& in = holder_of(windows_, index);
  return {.file = in.range.file,
          .first_token = in.range.begin + (index - in.first_window) * sequence_tokens_};
}

}  // namespace sluice::data
