#include "tools/report/step_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::report {

void StepSeries::Cell::add(double value) {
  sum += value;
  least = std::min(least, value);
  most = std::max(most, value);
  ++count;
}

void StepSeries::Cell::add(const Cell& other) {
  sum += other.sum;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
  count += other.count;
}

void StepSeries::add(std::int64_t step, std::span<const double> values) {
  Bucket& bucket = bucket_of(step);
  bucket.first_step = std::min(bucket.first_step, step);
  bucket.last_step = std::max(bucket.last_step, step);
  ++bucket.lines;
  for (std::size_t i = 0; i < columns_; ++i)
    if (std::isfinite(values[i])) bucket.cells[i].add(values[i]);
  while (buckets_.size() > most_buckets_) widen();
}

StepSeries::Bucket& StepSeries::bucket_of(std::int64_t step) {
  const std::int64_t index = step / width_;
  const auto made = [&] {
    return Bucket{.index = index,
                  .first_step = step,
                  .last_step = step,
                  .lines = 0,
                  .cells = std::vector<Cell>(columns_)};
  };
  if (buckets_.empty() || buckets_.back().index < index) return buckets_.emplace_back(made());
  const auto place =
      std::lower_bound(buckets_.begin(), buckets_.end(), index,
                       [](const Bucket& it, std::int64_t wanted) { return it.index < wanted; });
  if (place->index == index) return *place;
  return *buckets_.insert(place, made());
}

void StepSeries::widen() {
  width_ *= 2;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& from = buckets_[i];
    from.index /= 2;
    if (kept > 0 && buckets_[kept - 1].index == from.index) {
      Bucket& into = buckets_[kept - 1];
      into.first_step = std::min(into.first_step, from.first_step);
      into.last_step = std::max(into.last_step, from.last_step);
      into.lines += from.lines;
      for (std::size_t column = 0; column < columns_; ++column)
        into.cells[column].add(from.cells[column]);
    } else {
      if (kept != i) buckets_[kept] = std::move(from);
      ++kept;
    }
  }
  buckets_.resize(kept);
}

}  // namespace sluice::report
