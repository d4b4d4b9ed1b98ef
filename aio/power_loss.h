// PowerLoss: what a simulated drive remembers of what it was not asked to make durable.
//
// Data. Each write that no completed sync covers (and each one still in flight) is decided on its
// own: it lands, it is dropped, or it is torn, which means that a prefix, a suffix or any other
// part of its 512-byte sectors lands and the old content stays elsewhere. Since an older write may
// land where a newer one over the same bytes does not, this covers reordering too.
// Sizes and names are metadata operations: truncate, allocate, the growth a write brings, create,
// make folder, remove, rename. Each happens whole or not at all, a rename included.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::aio {

enum class PowerLoss : std::uint8_t {
  kOrdered,       // metadata: a random prefix survives, as on journaled file systems; data: random
  kAny,           // metadata: any subset that makes sense survives, as POSIX allows; data: random
  kDropUnsynced,  // nothing survives that was not made durable
  kKeepAll,       // everything survives, in-flight writes included
  kTearLast,      // everything survives, but the newest write of all is torn
};

// The decisions of one power loss. They depend only on the seed and each operation's sequence
// number, not on the order of the questions.
class PowerDice {
 public:
  struct Scene {
    std::vector<std::uint64_t> metadata;  // pending operations' sequence numbers, in any order
    std::uint64_t last_write = 0;         // the newest write's
  };
  PowerDice(PowerLoss policy, std::uint64_t seed, Scene scene);

  bool metadata_survives(std::uint64_t sequence) const;

  struct Range {
    std::uint64_t begin_bytes;
    std::uint64_t end_bytes;
  };
  // Which parts of a write of [begin, end) land.
  std::vector<Range> landing(std::uint64_t sequence, Range write) const;

 private:
  std::vector<Range> torn(std::uint64_t sequence, Range write, bool surely) const;

  PowerLoss policy_;
  std::uint64_t seed_;
  std::uint64_t last_write_;
  std::uint64_t ordered_end_ = 0;  // kOrdered: metadata before this survives
  double metadata_chance_ = 0;     // kAny
};

}  // namespace sluice::aio
