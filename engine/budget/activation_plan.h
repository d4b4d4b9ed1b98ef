// ActivationPlan: the memory of a run's activations. It covers unit inputs and what blocks save
// between forward and backward, and the working memory of one call. They are on the compute device;
// unit inputs may go to the host in between.
//
// Threads: const; callable from any thread.
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
  std::vector<bool> kept;  // per unit: saved between the passes, else recomputed
  std::optional<UnitInputOptions> unit_inputs;  // the inputs that go from the GPU to the host
  std::vector<bool> spilled;  // per unit: its input goes to NVMe; empty: none does
  // Buffers of the spilled inputs; without units if none is spilled.
  offload::InputSpill::Options spill;
  int spill_units = 1;  // minimum number of units whose inputs of a wave fit into the buffers
  // Micro-batches that go through the units together in an evaluation.
  std::uint64_t evaluation_micro_batches = 1;
};

class ActivationBytes {
 public:
  explicit ActivationBytes(const RunSpec& spec);

  // Bytes held between the passes. `places`: the resolved placement per unit.
  using Places = std::span<const offload::UnitPlacement>;
  std::uint64_t on_device(Places places) const;
  // Inputs that left the GPU: the ones that stay in RAM, and the buffers of the spilled ones.
  std::uint64_t on_host(Places places) const;
  std::uint64_t spill_buffers(Places places) const;
  std::uint64_t on_nvme(Places places) const;

  // `nvme_weights`: stripe weights of the NVMe paths.
  ActivationPlan plan(const RunSpec& spec, Places places, std::vector<int> nvme_weights) const;

 private:
  // Number of blocks whose inputs stay on the GPU while others go to the host; nullopt: all stay.
  std::optional<int> inputs_on_gpu(Places places) const;
  int moved(Places places) const;    // blocks whose inputs may go to NVMe
  int spilled(Places places) const;  // blocks whose inputs do; `places` may request more
  offload::InputSpill::Footprint spill_footprint(Places places) const;
  std::vector<bool> spilled_units(const RunSpec& spec, Places places) const;

  RunPurpose purpose_;
  UnitInputOptions inputs_;  // `slots` is not set
  int blocks_ = 0;
  bool on_gpu_ = false;
  std::optional<int> asked_ring_;    // slots, if the configuration offloads every input that can go
  bool spills_all_ = false;          // the configuration sends offloaded inputs to NVMe
  std::uint64_t micro_batches_ = 1;  // per wave
  std::uint64_t evaluated_together_ = 1;  // micro-batches, in a standalone evaluation
  std::uint64_t input_bytes_ = 0;         // per unit and micro-batch
  std::uint64_t moved_bytes_ = 0;         // a ring's bytes for one unit's inputs of a wave
  std::uint64_t call_bytes_ = 0;
  std::uint64_t load_bytes_ = 0;            // counts of experts, in training
  std::vector<std::uint64_t> saved_bytes_;  // per wave, by unit
  // If the host computes, the configuration alone decides what is saved; the planner has no choice.
  bool keeps_all_ = false;
};

}  // namespace sluice::engine
