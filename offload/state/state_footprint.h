// StateFootprint: what sub-groups of optimizer state take of each tier, as their tier lays them
// out: gaps, headers and buffers included. CpuState and GpuState take just this much; a store's
// layout comes to the same, by tests/engine/budget/memory_ledger_test.cc. Plans add it up for
// placements that they only consider.
//
// Threads: a value; its functions are pure.
#pragma once

#include <cstdint>
#include <span>

#include "offload/element_types.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

class StateFootprint {
 public:
  // How the state is stored. `record_elements`: of a record on nvme, at most; a multiple of
  // kTileElements.
  struct Storage {
    StateForm form;
    std::uint64_t record_elements = 16 << 20;
  };

  // So many sub-groups more, of so many elements each.
  void add(const Storage& storage, Tier tier, std::uint64_t elements, std::uint64_t count = 1);
  void add(const StateFootprint& other);
  static StateFootprint of(const Storage& storage, std::span<const SubGroup> placement);

  std::uint64_t gpu_bytes() const { return gpu_; }
  std::uint64_t cpu_bytes() const;                          // whole pages
  std::uint64_t nvme_bytes() const { return nvme_; }        // of records on all paths
  std::uint64_t swap_buffer_bytes(int swap_buffers) const;  // pinned
  // Host memory while all of it is set or saved, at most.
  std::uint64_t transfer_bytes(StateForm form) const;

 private:
  std::uint64_t gpu_ = 0;
  std::uint64_t cpu_ = 0;
  std::uint64_t nvme_ = 0;
  std::uint64_t largest_record_ = 0;
};

}  // namespace sluice::offload
