// ParamCache: which units are in which buffers, which unit is evicted, and which is read next. It
// makes ParamOffloader's decisions, without its IO and threads.
//
// Expected units come first, ordered by their next expected access. Then come units that are only
// hinted at, in the order of the hints, then all others, the most recently used first. The last
// unit in this order is evicted: this is Belady's MIN if all accesses are known, and LRU if none
// is. Reading ahead uses only free buffers and buffers of units that are needed later than the unit
// that is read. It looks only a limited number of units ahead: beyond that, keeping a unit is
// better than reading another one early.
//
// Memory:  fixed, except for the expected order (8 bytes per access).
// Threads: the caller's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice::offload {

class ParamCache {
 public:
  static constexpr int kNone = -1;

  // The class of each unit, kNone for units that need no buffer; the number of buffers of each
  // class. Buffers are numbered across all classes. In each class, the next `read_ahead` expected
  // units may be read ahead.
  ParamCache(std::span<const int> class_of_unit, std::span<const int> buffers_of_class,
             int read_ahead);

  // Sets the coming accesses, replacing those expected before.
  void expect(std::span<const int> order);
  // Records an access to the unit: its next expected access has happened.
  void access(int unit);

  int buffer_of(int unit) const { return units_[at(unit)].buffer; }
  // A unit keeps its buffer until unpin() was called as often as pin().
  void pin(int unit) { ++units_[at(unit)].pins; }
  void unpin(int unit);

  // Gives a buffer to a unit without one, if a buffer of its class is free or not pinned.
  bool take(int unit);
  // While a caller waits for a buffer of the unit's class, nothing is read ahead into that class.
  void begin_wait(int unit) { ++waiting_[class_of(unit)]; }
  void end_wait(int unit) { --waiting_[class_of(unit)]; }

  // The unit can be read from now on.
  void set_readable(int unit) { units_[at(unit)].readable = true; }
  // The readable unit without a buffer that is needed soonest and may take one; it gets the buffer
  // now. kNone: no unit should be read.
  int next_to_read();
  // The same for this unit, even if it is not expected. No effect on an expected unit.
  bool hint(int unit);

 private:
  static constexpr std::size_t kNever = ~std::size_t{0};
  struct Unit {
    int size_class = kNone;
    int buffer = kNone;
    int pins = 0;
    bool readable = false;
    std::uint64_t hinted = 0;     // 0: not hinted
    std::uint64_t last_use = 0;   // 0: never
    std::size_t next_use = 0;     // in uses_, among this unit's
    std::size_t end_of_uses = 0;  // in uses_
  };
  struct Class {
    int first_buffer = 0;
    int buffers = 0;
  };
  using Rank = std::pair<int, std::uint64_t>;  // larger: needed later

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  std::size_t class_of(int unit) const { return at(units_[at(unit)].size_class); }
  std::size_t next_use(const Unit& unit) const {
    return unit.next_use < unit.end_of_uses ? uses_[unit.next_use] : kNever;
  }
  Rank rank(const Unit& unit) const;
  int wanted_last(int size_class) const;
  bool take_if_wanted_sooner(int unit);
  void give(int buffer, int unit);

  const int read_ahead_;
  std::vector<Unit> units_;
  std::vector<Class> classes_;
  std::vector<int> holder_;        // by buffer: a unit, or kNone
  std::vector<int> waiting_;       // by class: number of callers that wait for a buffer
  std::vector<int> left_;          // by class: how many more units next_to_read() may consider
  std::vector<int> order_;         // the expected accesses
  std::vector<std::size_t> uses_;  // their positions, unit by unit
  std::size_t front_ = 0;          // every earlier access has happened
  std::uint64_t clock_ = 0;        // counts accesses and hints
};

}  // namespace sluice::offload
