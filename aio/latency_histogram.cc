#include "aio/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice::aio {

int LatencyHistogram::bucket_of(std::uint64_t value) {
  if (value < (1U << kSubBits)) return static_cast<int>(value);
  // The top kSubBits + 1 bits select the bucket: the power of two, then 64 equal parts of it.
  const int exponent = std::bit_width(value) - 1 - kSubBits;
  return (exponent << kSubBits) + static_cast<int>(value >> exponent);
}

std::int64_t LatencyHistogram::upper_end_of(int bucket) {
  if (bucket < (2 << kSubBits)) return bucket;
  const int exponent = (bucket >> kSubBits) - 1;
  const auto mantissa =
      static_cast<std::uint64_t>(bucket & ((1 << kSubBits) - 1)) + (1 << kSubBits);
  // Unsigned: one past the end of the last bucket is 2^63.
  return static_cast<std::int64_t>(((mantissa + 1) << exponent) - 1);
}

void LatencyHistogram::record(std::int64_t nanoseconds) {
  const std::int64_t value = std::max<std::int64_t>(nanoseconds, 0);
  ++buckets_[static_cast<std::size_t>(bucket_of(static_cast<std::uint64_t>(value)))];
  ++count_;
  max_ns_ = std::max(max_ns_, value);
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

std::int64_t LatencyHistogram::percentile_ns(double percent) const {
  if (count_ == 0) return 0;
  // The product of a round percentage and a count may be slightly above a whole number; the rank
  // must not become one too high.
  constexpr double kRounding = 1.0 - 1e-12;
  const auto rank = static_cast<std::uint64_t>(
      std::max(1.0, std::ceil(static_cast<double>(count_) * percent / 100.0 * kRounding)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::min(upper_end_of(static_cast<int>(i)), max_ns_);
  }
  return max_ns_;
}

}  // namespace sluice::aio
