// StepSeries: numbers by step, thinned so that however many steps come, a bounded number of buckets
// is kept. Of each bucket it keeps mean, least and most, so no peak is lost; a run of fewer steps
// than buckets is kept as it is.
//
// A bucket has `width` consecutive steps, of which some may be missing; the width is 1 until there
// are too many buckets, and doubles each time. Steps may come in any order, and twice.
//
// Memory:  most_buckets * columns * 32 bytes, at most.
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluice::report {

class StepSeries {
 public:
  struct Cell {
    double sum = 0;
    double least = std::numeric_limits<double>::infinity();
    double most = -std::numeric_limits<double>::infinity();
    std::int64_t count = 0;  // 0: nothing is known

    void add(double value);
    void add(const Cell& other);
    double mean() const { return sum / static_cast<double>(count); }
  };
  struct Bucket {
    std::int64_t index = 0;  // of the step, over the width
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    std::int64_t lines = 0;
    std::vector<Cell> cells;  // by column
  };

  // `most_buckets`: at least 1.
  StepSeries(std::size_t columns, std::size_t most_buckets)
      : columns_(columns), most_buckets_(most_buckets) {}

  // `step` >= 0. As many values as columns; what is not finite is not known.
  void add(std::int64_t step, std::span<const double> values);

  std::int64_t width() const { return width_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }  // by step

 private:
  Bucket& bucket_of(std::int64_t step);
  void widen();

  std::size_t columns_;
  std::size_t most_buckets_;
  std::int64_t width_ = 1;
  std::vector<Bucket> buckets_;
};

}  // namespace sluice::report
