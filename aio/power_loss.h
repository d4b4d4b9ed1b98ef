// PowerLoss: what survives on a simulated drive of changes that were not made durable.
//
// Data: each write that no completed sync covers (and each one still in flight) is decided
// separately. It is kept, dropped or torn: then a prefix, a suffix or any other part of its
// 512-byte sectors is kept, and the old content stays elsewhere. An older write may be kept where a
// newer one over the same bytes is dropped, so this covers reordering too.
// Metadata: sizes and names change by truncate, allocate, growth by a write, create, make folder,
// remove and rename. Each happens completely or not at all.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::aio {

enum class PowerLoss : std::uint8_t {
  kOrdered,       // metadata: a random prefix survives, as on journaled file systems; data: random
  kAny,           // metadata: any consistent subset survives, as POSIX allows; data: random
  kDropUnsynced,  // only what was made durable survives
  kKeepAll,       // everything survives, in-flight writes included
  kTearLast,      // everything survives, but the newest write is torn
};

// The decisions of one power loss. They depend only on the seed and each operation's sequence
// number, not on the order of the calls.
class PowerLossModel {
 public:
  struct Scene {
    std::vector<std::uint64_t> metadata;  // sequence numbers of pending operations, in any order
    std::uint64_t last_write = 0;         // the newest write's sequence number
  };
  PowerLossModel(PowerLoss policy, std::uint64_t seed, Scene scene);

  bool metadata_survives(std::uint64_t sequence) const;

  struct Range {
    std::uint64_t begin_bytes;
    std::uint64_t end_bytes;
  };
  // The parts of a write of [begin, end) that survive.
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
