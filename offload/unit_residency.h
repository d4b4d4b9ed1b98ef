// UnitResidency: which part of each unit lives on the GPU for the whole run, and which part of its
// state the host updates.
//
// A resident unit has a place of its own for its parameters in GPU memory; others share slots. A
// unit with state on the GPU is resident: its parameters are updated where they are. A resident
// unit may also have state on the host; then just those parameters are copied after each step.
// With several ranks a resident unit is whole on each of them, and one that is not resident may
// have state on the GPU: then its shard's parameters have a place of their own there. Ranges are
// of the shard.
//
// Threads: const, from any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

struct ElementRange {
  std::uint64_t first = 0;  // in the unit, or its shard
  std::uint64_t elements = 0;
};

class UnitResidency {
 public:
  // Nothing is resident: as without a GPU, and in passes that have no optimizer.
  UnitResidency() = default;
  // By the placement, and `resident` (empty: none) for units of which only the parameters are.
  // `is_sharded`: of one of several ranks.
  UnitResidency(int units, std::span<const SubGroup> placement, const std::vector<bool>& resident,
                bool is_sharded = false);

  bool resident(int unit) const { return at(unit).resident; }
  // Whether its shard, of a unit that is not resident, has a place of its own on the GPU.
  bool keeps_shard(int unit) const { return at(unit).gpu_state && !at(unit).resident; }
  // Of its state; neighbours are joined.
  std::span<const ElementRange> on_host(int unit) const { return at(unit).host; }
  bool has_gpu_state(int unit) const { return at(unit).gpu_state; }
  bool has_host_state(int unit) const { return !at(unit).host.empty(); }

 private:
  struct Unit {
    bool resident = false;
    bool gpu_state = false;
    std::vector<ElementRange> host;
  };
  const Unit& at(int unit) const;

  std::vector<Unit> units_;  // empty: nothing is resident
};

}  // namespace sluice::offload
