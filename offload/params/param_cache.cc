#include "offload/params/param_cache.h"

#include <algorithm>

#include "aio/check.h"

namespace sluice::offload {

ParamCache::ParamCache(std::span<const int> class_of_unit, std::span<const int> buffers_of_class,
                       int read_ahead)
    : read_ahead_(read_ahead),
      units_(class_of_unit.size()),
      waiting_(buffers_of_class.size(), 0),
      left_(buffers_of_class.size(), 0) {
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i].size_class = class_of_unit[i];
  int first_buffer = 0;
  for (const int buffers : buffers_of_class) {
    classes_.push_back({.first_buffer = first_buffer, .buffers = buffers});
    first_buffer += buffers;
  }
  holder_.assign(at(first_buffer), kNone);
}

// Positions sorted by unit (counting sort).
void ParamCache::expect(std::span<const int> order) {
  order_.assign(order.begin(), order.end());
  uses_.resize(order_.size());
  front_ = 0;
  for (Unit& unit : units_) unit.end_of_uses = 0;
  for (const int unit : order_) {
    SLUICE_CHECK(unit >= 0 && at(unit) < units_.size(), "an access to a unit is expected");
    ++units_[at(unit)].end_of_uses;
  }
  std::size_t begin = 0;
  for (Unit& unit : units_) {
    const std::size_t count = unit.end_of_uses;
    unit.next_use = unit.end_of_uses = begin;
    begin += count;
  }
  for (std::size_t i = 0; i < order_.size(); ++i) uses_[units_[at(order_[i])].end_of_uses++] = i;
}

void ParamCache::access(int index) {
  Unit& unit = units_[at(index)];
  unit.hinted = 0;
  unit.last_use = ++clock_;
  if (unit.next_use < unit.end_of_uses) ++unit.next_use;
  const auto has_come = [&](std::size_t i) { return i < next_use(units_[at(order_[i])]); };
  while (front_ < order_.size() && has_come(front_)) ++front_;
}

void ParamCache::unpin(int unit) {
  SLUICE_CHECK(units_[at(unit)].pins > 0, "only what is pinned is unpinned");
  --units_[at(unit)].pins;
}

ParamCache::Rank ParamCache::rank(const Unit& unit) const {
  if (const std::size_t next = next_use(unit); next != kNever) return {0, next};
  if (unit.hinted != 0) return {1, unit.hinted};
  return {2, ~unit.last_use};
}

// A free buffer, else the buffer of the unit needed last among those that may be evicted; or kNone.
int ParamCache::wanted_last(int size_class) const {
  const Class& its = classes_[at(size_class)];
  int last = kNone;
  for (int buffer = its.first_buffer; buffer < its.first_buffer + its.buffers; ++buffer) {
    const int holder = holder_[at(buffer)];
    if (holder == kNone) return buffer;
    const Unit& unit = units_[at(holder)];
    if (unit.pins > 0) continue;
    if (last == kNone || rank(unit) > rank(units_[at(holder_[at(last)])])) last = buffer;
  }
  return last;
}

void ParamCache::give(int buffer, int unit) {
  int& holder = holder_[at(buffer)];
  if (holder != kNone) {
    units_[at(holder)].buffer = kNone;
    units_[at(holder)].hinted = 0;
  }
  holder = unit;
  units_[at(unit)].buffer = buffer;
}

bool ParamCache::take(int unit) {
  SLUICE_CHECK(buffer_of(unit) == kNone, "a unit has one buffer");
  const int buffer = wanted_last(units_[at(unit)].size_class);
  if (buffer == kNone) return false;
  give(buffer, unit);
  return true;
}

bool ParamCache::take_if_wanted_sooner(int index) {
  const Unit& unit = units_[at(index)];
  if (waiting_[at(unit.size_class)] > 0) return false;
  const int buffer = wanted_last(unit.size_class);
  if (buffer == kNone) return false;
  const int holder = holder_[at(buffer)];
  if (holder != kNone && rank(units_[at(holder)]) < rank(unit)) return false;
  give(buffer, index);
  return true;
}

// If a unit gets no buffer, no unit that is needed later gets one either.
int ParamCache::next_to_read() {
  std::fill(left_.begin(), left_.end(), read_ahead_);
  std::size_t classes_left = read_ahead_ > 0 ? classes_.size() : 0;
  for (std::size_t i = front_; i < order_.size() && classes_left > 0; ++i) {
    const int index = order_[i];
    const Unit& unit = units_[at(index)];
    if (unit.size_class == kNone || i != next_use(unit)) continue;
    int& left = left_[at(unit.size_class)];
    if (left == 0) continue;
    if (unit.buffer == kNone && unit.readable) {
      if (take_if_wanted_sooner(index)) return index;
      left = 1;
    }
    if (--left == 0) --classes_left;
  }
  return kNone;
}

bool ParamCache::hint(int index) {
  Unit& unit = units_[at(index)];
  if (unit.size_class == kNone || !unit.readable || next_use(unit) != kNever) return false;
  if (unit.hinted == 0) unit.hinted = ++clock_;
  if (unit.buffer != kNone) return false;
  if (take_if_wanted_sooner(index)) return true;
  unit.hinted = 0;
  return false;
}

}  // namespace sluice::offload
