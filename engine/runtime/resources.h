// Resources: the parts of a run, made and owned in one place: drives, executors, parameters, the
// gradient sink, the optimizer and its binding, the inputs of units, links and the trace. Whoever
// drives a run (a configuration's training, a script, evaluation, generation) says what it is for,
// and gets the same parts made in the same way.
//
// Memory:  the plan's; taken by create(), and given back by the destructor, which also removes the
//          stores on NVMe.
// Threads: one at a time.
// Errors:  create() as a value, naming the file, the store or the unit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/device/phase_clock.h"
#include "engine/observe/gpu_monitor.h"
#include "engine/observe/io_trace.h"
#include "engine/observe/trace_log.h"
#include "engine/runtime/make_parts.h"
#include "engine/runtime/model_parameters.h"
#include "engine/runtime/run_state.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/unit_binding.h"
#include "engine/step/unit_input_store.h"
#include "offload/inputs/input_spill.h"
#include "offload/state/optimizer_offloader.h"

namespace sluice::engine {

class Resources {
 public:
  enum class Use : std::uint8_t {
    kForward,  // passes without a gradient: parameters alone
    kPasses,   // training; what is between forward and backward is kept by whoever computes it
    kSteps,    // training in whole steps, whose units' inputs are kept here
  };
  // Parameters beside those that are trained, which come and go and have no gradient.
  struct Frozen {
    const MemoryPlan* plan = nullptr;
    const ModelLayout* model = nullptr;
  };
  struct Environment {
    Use use = Use::kSteps;
    Communicator* link = nullptr;  // of several ranks; null: there is one
    std::optional<Frozen> frozen = {};
    // Threads that update and add, of all ranks of this host; 0: as the configuration says.
    int workers = 0;
  };
  // Everything that is passed in must outlive it; `config` is read here alone. With several ranks
  // on GPUs for all of them to call.
  static Result<std::unique_ptr<Resources>> create(const config::Config& config,
                                                   const MemoryPlan& plan, const ModelLayout& model,
                                                   const Environment& environment);
  ~Resources();  // waits for an update in progress
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;

  const MemoryPlan& plan() const { return plan_; }
  const ModelLayout& model() const { return model_; }
  const RankLink& ranks() const { return ranks_; }
  TraceLog& trace() { return trace_; }
  RunDrives& drives() { return drives_; }
  ModelParameters& parameters() const { return *parameters_; }
  ModelParameters* frozen() const { return frozen_.get(); }  // null: nothing is

  bool trains() const { return optimizer_ != nullptr; }

  // ---- not of kForward
  aio::Executor& update_executor() const { return *update_executor_; }
  offload::OptimizerOffloader& optimizer() const { return *optimizer_; }
  GradientSink& gradients() const { return *gradients_; }
  // What an update finds its parameters and gradients by.
  UnitBinding& binding() const { return *binding_; }
  // Units whose gradients on NVMe will be wanted, in this order. A hint.
  void expect_gradients(std::span<const int> order);
  // Every update applied, everything on its way written.
  Status drain();
  // What a checkpoint holds of it.
  RunState state() const;

  // ---- of kSteps
  UnitInputStore& unit_inputs() const { return *unit_inputs_; }
  PhaseClock& clock() const { return *clock_; }

  // ---- for metrics; of this rank
  struct Traffic {
    std::uint64_t nvme_read_bytes = 0;
    std::uint64_t nvme_write_bytes = 0;
    std::uint64_t h2d_bytes = 0;
    std::uint64_t d2h_bytes = 0;
  };
  Traffic traffic() const;  // since create()
  struct Memory {
    std::uint64_t gpu_peak_bytes = 0;  // LibTorch's; 0 on the CPU
    std::uint64_t pinned_bytes = 0;
    std::uint64_t resident_bytes = 0;
  };
  Memory memory() const;
  GpuMonitor* gpu_monitor() const { return gpu_monitor_.get(); }  // null: on the CPU

 private:
  Resources(const MemoryPlan& plan, const ModelLayout& model, Communicator* link)
      : plan_(plan),
        model_(model),
        own_link_(link != nullptr ? nullptr : make_single_process_communicator()),
        ranks_{.part = plan.ranks, .link = link != nullptr ? link : own_link_.get()} {}
  Status limit_gpu(const config::Config& config) const;
  Status make_forward(const config::Config& config, const Environment& environment);
  Status make_training();
  Status make_unit_inputs();

  const MemoryPlan& plan_;
  const ModelLayout& model_;
  const std::unique_ptr<Communicator> own_link_;  // of one rank
  GpuRanks cuda_ranks_;
  RankLink ranks_;
  TraceLog trace_;
  IoTrace io_trace_{trace_};
  std::unique_ptr<GpuMonitor> gpu_monitor_;
  RunDrives drives_;
  std::unique_ptr<aio::Executor> update_executor_;    // AdamW, under the next forward
  std::unique_ptr<aio::Executor> gradient_executor_;  // casts, and checks of what is read
  std::unique_ptr<ModelParameters> parameters_;
  std::unique_ptr<ModelParameters> frozen_;
  std::unique_ptr<offload::DeviceTier> gpu_tier_;  // null: no state is there
  std::unique_ptr<offload::OptimizerOffloader> optimizer_;
  std::unique_ptr<offload::ParamOffloader> gradient_places_;  // null: no gradient is on NVMe
  std::unique_ptr<GradientSink> gradients_;
  std::unique_ptr<UnitBinding> binding_;
  std::unique_ptr<offload::InputSpill> spill_;  // null: no unit's input goes to the drives
  std::unique_ptr<UnitInputStore> unit_inputs_;
  std::unique_ptr<PhaseClock> clock_;
};

}  // namespace sluice::engine
