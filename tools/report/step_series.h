// StepSeries: numbers by step, thinned to a bounded number of buckets. Each bucket keeps mean,
// least and most, so no peak is lost; a run with fewer steps than buckets is kept unchanged.
//
// A bucket has `width` consecutive steps, of which some may be missing. The width starts at 1 and
// doubles whenever there are too many buckets. Steps may be added in any order and repeatedly.
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
    std::int64_t count = 0;  // 0: unknown

    void add(double value);
    void add(const Cell& other);
    double mean() const { return sum / static_cast<double>(count); }
  };
  struct Bucket {
    std::int64_t index = 0;  // the step divided by the width
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    std::int64_t lines = 0;
    std::vector<Cell> cells;  // by column
  };

  // `most_buckets`: at least 1.
  StepSeries(std::size_t columns, std::size_t most_buckets)
      : columns_(columns), most_buckets_(most_buckets) {}

  // `step` >= 0. One value per column; a value that is not finite is unknown.
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
