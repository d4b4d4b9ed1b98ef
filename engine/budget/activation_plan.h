// What a run's activations take: the inputs of units and what blocks keep between forward and
// backward, and what one call works with; on the compute device, and for inputs that go to the host
// in between, there.
//
// Threads: const, from any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/budget/run_spec.h"
#include "engine/budget/unit_input_plan.h"
#include "offload/inputs/input_spill.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

struct ActivationPlan {
  std::vector<bool> kept;                       // by unit, between the passes; else recomputed
  std::optional<UnitInputOptions> unit_inputs;  // those that go from the GPU to the host
  std::vector<bool> spilled;                    // by unit: whose go to NVMe; empty: no unit's
  // What they go through; without units where none goes.
  offload::InputSpill::Options spill;
  int spill_units = 1;  // whose inputs of a wave the buffers would hold, at least
  // How many micro-batches go through the units together in an evaluation.
  std::uint64_t evaluation_micro_batches = 1;
};

class ActivationBytes {
 public:
  explicit ActivationBytes(const RunSpec& spec);

  // Between the passes. `places`: as settled, by unit.
  using Places = std::span<const offload::UnitPlacement>;
  std::uint64_t on_device(Places places) const;
  // Of inputs that left the GPU: those that stay in RAM, and buffers of those that do not.
  std::uint64_t on_host(Places places) const;
  std::uint64_t spill_buffers(Places places) const;
  std::uint64_t on_nvme(Places places) const;

  // `nvme_weights`: of the paths.
  ActivationPlan plan(const RunSpec& spec, Places places, std::vector<int> nvme_weights) const;

 private:
  // How many blocks' inputs stay on the GPU, where others go to the host; nothing: all stay.
  std::optional<int> inputs_on_gpu(Places places) const;
  int moved(Places places) const;    // blocks whose inputs may leave for the drives
  int spilled(Places places) const;  // those that do; places may ask for more
  offload::InputSpill::Footprint spill_footprint(Places places) const;
  std::vector<bool> spilled_units(const RunSpec& spec, Places places) const;

  RunPurpose purpose_;
  UnitInputOptions inputs_;  // without slots
  int blocks_ = 0;
  bool on_gpu_ = false;
  std::optional<int> asked_ring_;    // slots, where the configuration sends away whatever can go
  bool spills_all_ = false;          // to NVMe, what leaves, as the configuration says
  std::uint64_t micro_batches_ = 1;  // of a wave
  std::uint64_t evaluated_together_ = 1;  // in an evaluation on its own
  std::uint64_t input_bytes_ = 0;         // of a unit and micro-batch
  std::uint64_t moved_bytes_ = 0;         // that a unit's inputs of a wave take in a ring
  std::uint64_t call_bytes_ = 0;
  std::vector<std::uint64_t> saved_bytes_;  // of a wave, by unit
  // Where the host computes, the configuration alone says what is kept: a planner has no choice.
  bool keeps_all_ = false;
};

}  // namespace sluice::engine
