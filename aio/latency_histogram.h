// LatencyHistogram: counts durations in log-linear buckets; percentiles are within 1/64 (1.6%).
//
// Fixed size, no allocation, about 2 ns a record.
//
// Threads: none of its own; guard it, or keep one per thread and merge them.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::aio {

class LatencyHistogram {
 public:
  void record(std::int64_t nanoseconds);
  void merge(const LatencyHistogram& other);

  // The smallest duration that at least `percent` of the records do not exceed, rounded up to its
  // bucket's upper end; 0 when empty. percent in (0, 100].
  std::int64_t percentile_ns(double percent) const;

 private:
  // 64 buckets for each power of two: below 64 ns exact, above a relative width of 1/64.
  static constexpr int kSubBits = 6;
  static constexpr int kBuckets = (64 - kSubBits) << kSubBits;
  static int bucket_of(std::uint64_t value);
  static std::int64_t upper_end_of(int bucket);

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::int64_t max_ns_ = 0;
};

}  // namespace sluice::aio
