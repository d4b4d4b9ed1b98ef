// ParamCache: which units are in which buffers, which of them is evicted, and which is read next.
// The decisions of ParamOffloader, without its IO and threads.
//
// The earlier its next access is expected, the sooner a unit is wanted; expected units come before
// those that are only hinted at (in the order of the hints), and those before all others (the most
// recently used first). The unit wanted last is evicted, as by Belady's MIN when all accesses are
// known and by LRU when none is. Reading ahead takes only free buffers and those of units wanted
// later than the one that is read, and looks only a limited number of units ahead: beyond that,
// keeping a unit is better than reading another one early.
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

  // The class of each unit, kNone for those that need no buffer; how many buffers each class has.
  // Buffers are numbered across all classes. In each class, the next `read_ahead` expected units
  // may be read ahead.
  ParamCache(std::span<const int> class_of_unit, std::span<const int> buffers_of_class,
             int read_ahead);

  // The coming accesses, replacing those expected before.
  void expect(std::span<const int> order);
  // The unit is accessed: its next expected access has come.
  void access(int unit);

  int buffer_of(int unit) const { return units_[at(unit)].buffer; }
  // A unit keeps its buffer until it is unpinned as often as it was pinned.
  void pin(int unit) { ++units_[at(unit)].pins; }
  void unpin(int unit);

  // Gives a unit without a buffer one, if any of its class is free or not pinned.
  bool take(int unit);
  // While a caller waits for a buffer of the unit's class, nothing is read ahead into that class.
  void begin_wait(int unit) { ++waiting_[class_of(unit)]; }
  void end_wait(int unit) { --waiting_[class_of(unit)]; }

  // The unit can be read from now on.
  void set_readable(int unit) { units_[at(unit)].readable = true; }
  // The readable unit without a buffer that is wanted soonest and may have one: it gets it now.
  // kNone: no unit is worth it.
  int next_to_read();
  // The same for this unit, though it may not be expected. Without effect on an expected one.
  bool hint(int unit);

 private:
  static constexpr std::size_t kNever = ~std::size_t{0};
  struct Unit {
    int size_class = kNone;
    int buffer = kNone;
    int pins = 0;
    bool readable = false;
    std::uint64_t hinted = 0;     // 0: not
    std::uint64_t last_use = 0;   // 0: never
    std::size_t next_use = 0;     // in uses_, of this unit's
    std::size_t end_of_uses = 0;  // likewise
  };
  struct Class {
    int first_buffer = 0;
    int buffers = 0;
  };
  using Rank = std::pair<int, std::uint64_t>;  // the larger, the later

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
  std::vector<int> holder_;        // of each buffer: a unit, or kNone
  std::vector<int> waiting_;       // of each class: how many wait for a buffer
  std::vector<int> left_;          // of each class: how many more next_to_read() may look at
  std::vector<int> order_;         // what is expected
  std::vector<std::size_t> uses_;  // its positions, unit by unit
  std::size_t front_ = 0;          // every access before has come
  std::uint64_t clock_ = 0;        // counts accesses and hints
};

}  // namespace sluice::offload
