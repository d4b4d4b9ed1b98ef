// UnitResidency: which part of each unit stays on the GPU for the whole run, and which part of its
// state the host updates.
//
// A resident unit has its own place in GPU memory for its parameters; the others share slots. Units
// with state on the GPU are resident, because their parameters are updated in place. A resident
// unit may also have state on the host; then only the parameters of that state are copied after
// each step. With several ranks a resident unit is stored whole on each of them. A unit that is not
// resident may then also have state on the GPU: its shard's parameters have their own place there.
// Ranges are relative to the shard.
//
// Threads: const methods from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

struct ElementRange {
  std::uint64_t first = 0;  // in the unit, or in its shard
  std::uint64_t elements = 0;
};

class UnitResidency {
 public:
  // Nothing is resident: for runs without a GPU, and for passes without an optimizer.
  UnitResidency() = default;
  // Residency that follows from the placement; `resident` (empty: none) adds units of which only
  // the parameters are resident. `is_sharded`: the run has several ranks, and this is one of them.
  UnitResidency(int units, std::span<const SubGroup> placement, const std::vector<bool>& resident,
                bool is_sharded = false);

  bool resident(int unit) const { return at(unit).resident; }
  // Whether the unit is not resident but its shard has its own place on the GPU.
  bool keeps_shard(int unit) const { return at(unit).gpu_state && !at(unit).resident; }
  // The ranges of its state that are on the host; adjacent ranges are joined.
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
