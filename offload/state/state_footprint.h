// StateFootprint: the memory that sub-groups of optimizer state take in each tier, in the layout of
// that tier: gaps, headers and buffers included. CpuState and GpuState take exactly this much, and
// tests/engine/budget/memory_ledger_test.cc checks that a store's layout does too. Plans use it to
// evaluate placements without allocating them.
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
  // How the state is stored. `record_elements`: the largest record on nvme; a multiple of
  // kTileElements.
  struct Storage {
    StateForm form;
    std::uint64_t record_elements = 16 << 20;
    bool in_place = false;  // OptimizerOffloader::Options::in_place
  };

  // Adds `count` sub-groups of `elements` elements each.
  void add(const Storage& storage, Tier tier, std::uint64_t elements, std::uint64_t count = 1);
  void add(const StateFootprint& other);
  static StateFootprint of(const Storage& storage, std::span<const SubGroup> placement);

  std::uint64_t gpu_bytes() const { return gpu_; }
  std::uint64_t cpu_bytes() const;                          // whole pages
  std::uint64_t nvme_bytes() const { return nvme_; }        // records on all paths
  std::uint64_t swap_buffer_bytes(int swap_buffers) const;  // pinned
  // Host memory while all state is set or saved; a maximum.
  std::uint64_t transfer_bytes(StateForm form) const;

 private:
  std::uint64_t gpu_ = 0;
  std::uint64_t cpu_ = 0;
  std::uint64_t nvme_ = 0;
  std::uint64_t largest_record_ = 0;
  std::uint64_t largest_parameter_record_ = 0;  // 0: there are none
};

}  // namespace sluice::offload
