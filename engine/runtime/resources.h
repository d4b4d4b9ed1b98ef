// Resources: makes and owns the parts of a run: drives, executors, parameters, the gradient sink,
// the optimizer and its binding, the inputs of units, links and the trace. Every driver of a run (a
// configuration's training, a script, evaluation, generation) states its use, and gets the same
// parts made in the same way.
//
// Memory:  the plan's. create() takes it; the destructor returns it, and removes the stores on
//          NVMe.
// Threads: one at a time.
// Errors:  create() returns them; they name the file, the store or the unit.
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
    kForward,  // passes without a gradient: only parameters
    kPasses,   // training; the caller keeps tensors between forward and backward
    kSteps,    // training in whole steps; units' inputs are kept here
  };
  // Frozen parameters that are fetched and released next to the trained ones, without gradients.
  struct Frozen {
    const MemoryPlan* plan = nullptr;
    const ModelLayout* model = nullptr;
  };
  struct Environment {
    Use use = Use::kSteps;
    Communicator* link = &single_process();
    std::optional<Frozen> frozen = {};
    // Threads for updates and additions, over all ranks of this host; 0: from the configuration.
    int workers = 0;
    MakeBackend make_backend = make_run_backend;
  };
  // Everything passed in must outlive it, except `config`, which only create() reads. Collective if
  // there are several ranks with GPUs.
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
  ModelParameters* frozen() const { return frozen_.get(); }  // null: no frozen parameters

  bool trains() const { return optimizer_ != nullptr; }

  // ---- not for kForward
  aio::Executor& update_executor() const { return *update_executor_; }
  offload::OptimizerOffloader& optimizer() const { return *optimizer_; }
  GradientSink& gradients() const { return *gradients_; }
  // Gives an update its parameters and gradients.
  UnitBinding& binding() const { return *binding_; }
  // Hint: the order in which units' gradients on NVMe will be needed.
  void expect_gradients(std::span<const int> order);
  // Waits until every update is applied and every write has ended.
  Status drain();
  // The state that a checkpoint stores.
  RunState state() const;

  // ---- only for kSteps
  UnitInputStore& unit_inputs() const { return *unit_inputs_; }
  PhaseClock& clock() const { return *clock_; }

  // ---- metrics of this rank
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
  Resources(const MemoryPlan& plan, const ModelLayout& model, Communicator& link)
      : plan_(plan), model_(model), ranks_{.part = plan.ranks, .link = &link} {}
  Status limit_gpu(const config::Config& config) const;
  Status make_forward(const config::Config& config, const Environment& environment);
  Status make_training();
  Status make_unit_inputs();

  const MemoryPlan& plan_;
  const ModelLayout& model_;
  GpuRanks cuda_ranks_;
  RankLink ranks_;
  TraceLog trace_;
  IoTrace io_trace_{trace_};
  std::unique_ptr<GpuMonitor> gpu_monitor_;
  RunDrives drives_;
  std::unique_ptr<aio::Executor> update_executor_;    // AdamW, during the next forward
  std::unique_ptr<aio::Executor> gradient_executor_;  // casts, and checks of records read
  std::unique_ptr<ModelParameters> parameters_;
  std::unique_ptr<ModelParameters> frozen_;
  std::unique_ptr<offload::DeviceTier> gpu_tier_;  // null: no state on the GPU
  std::unique_ptr<offload::OptimizerOffloader> optimizer_;
  std::unique_ptr<offload::ParamOffloader> gradient_places_;  // null: no gradients on NVMe
  std::unique_ptr<GradientSink> gradients_;
  std::unique_ptr<UnitBinding> binding_;
  std::unique_ptr<offload::InputSpill> spill_;  // null: no inputs are spilled
  std::unique_ptr<UnitInputStore> unit_inputs_;
  std::unique_ptr<PhaseClock> clock_;
};

}  // namespace sluice::engine
