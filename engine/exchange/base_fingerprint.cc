#include "engine/exchange/base_fingerprint.h"

#include <algorithm>
#include <vector>

#include "swap/sealed_json.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kRangeElements = 256;

}  // namespace

std::array<SampledRange, 4> sampled_ranges(std::uint64_t elements) {
  std::array<SampledRange, 4> ranges;
  if (elements <= ranges.size() * kRangeElements) {
    ranges.fill({.first = elements, .count = 0});
    ranges.front() = {.first = 0, .count = elements};
    return ranges;
  }
  for (std::size_t i = 0; i < ranges.size(); ++i)
    ranges[i] = {.first = (elements - kRangeElements) / (ranges.size() - 1) * i,
                 .count = kRangeElements};
  ranges.back().first = elements - kRangeElements;
  return ranges;
}

void BaseFingerprint::add(std::uint64_t elements, std::uint64_t first,
                          std::span<const float> values) {
  all_.add(std::as_bytes(values));
  const std::uint64_t end = first + values.size();
  for (const SampledRange& range : sampled_ranges(elements)) {
    const std::uint64_t from = std::max(range.first, first);
    const std::uint64_t to = std::min(range.first + range.count, end);
    if (from < to) sample_.add(std::as_bytes(values.subspan(from - first, to - from)));
  }
}

std::string BaseFingerprint::all() const { return swap::to_hex(all_.value()); }
std::string BaseFingerprint::sample() const { return swap::to_hex(sample_.value()); }

Error other_base(const ExpectedBase& base) {
  return Error(ErrorCode::kInvalidArgument,
               "the checkpoint's adapters were trained on other base weights than those of " +
                   base.path + ": " + base.advice);
}

Status check_base_sample(const ModelWeights& weights, const StoredRun& stored,
                         const ExpectedBase& base) {
  if (!stored.adapters || stored.adapters->base_sample.empty()) return {};
  BaseFingerprint fingerprint;
  std::vector<float> values;
  for (const std::string& name : weights.names) {
    const std::uint64_t elements = weights.reader->find(name)->elements;
    for (const SampledRange& range : sampled_ranges(elements)) {
      values.resize(range.count);
      SLUICE_RETURN_IF_ERROR(weights.reader->read(name, range.first, values));
      fingerprint.add(elements, range.first, values);
    }
  }
  if (fingerprint.sample() == stored.adapters->base_sample) return {};
  return other_base(base);
}

}  // namespace sluice::engine
