// TrainingRun: everything a configuration asks for, built and wired: drives, offloaders, model,
// data, trainer. Its plan (memory_plan.h) is made before anything is allocated.
//
// What is nvme in the configuration lies in two stores, sluice-<name>-params and
// sluice-<name>-optimizer, on the paths of the configuration; <name> follows from the run's
// directory, so that a run finds, and replaces, what its own killed predecessor left.
//
// Threads: one.
// Errors:  create() and the calls that return Status as values; step() and evaluate() throw as
//          Trainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "engine/run/run_data.h"
#include "engine/run/saved_run.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/trainer.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

class TrainingRun final : public SavedRun {
 public:
  // `plan` is the one of this configuration. The state is not there yet: initialise().
  //
  // With several ranks all of them make one with the plan of theirs, over `link`, which must
  // outlive it, and all initialise or resume. Then the first rank leads: what it calls of the rest
  // is done by the others in follow(), until it has gone. Whoever fails has to abort the link, once
  // the run is gone, so that the others do not wait.
  static Result<std::unique_ptr<TrainingRun>> create(const config::Config& config,
                                                     const MemoryPlan& plan,
                                                     Communicator* link = nullptr);
  bool is_first_rank() const { return ranks().part.rank == 0; }
  // Of every rank, once the state is there or could not be had, as `own` says: none goes on before
  // all can. Where one has failed, or reads other data or weights than the first one, all get an
  // error: the first rank what happened and on which rank, the others kCancelled.
  Status begin_together(const Status& own);
  // Of another rank. Throws as step() does.
  Status follow();
  ~TrainingRun() override;  // removes the stores
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // Masters from model.init_from or at random, moments zero; where adapters are trained, those are
  // the base's weights, and the adapters are of recipe.lora.adapter or at random. Progress:
  // elements done; one call at a time, on any thread. Its error ends the call.
  using Progress = RunState::Progress;
  Status initialise(const Progress& progress);
  // Instead: all state as it was when the checkpoint was written, so that the next step has the
  // bits of a run that never stopped. kInvalidArgument names what this run does not have in common
  // with that one; a different number of CPU threads, which may change last bits, only causes a
  // warning.
  Status resume(CheckpointReader& checkpoint, const Progress& progress);

  StepOutcome step();
  // Over run.eval_batches batches of the validation data, or all of it if that is less.
  double evaluate();

  Status take_state(const TakeState& take, offload::Calls calls) override;
  using SavedRun::take_state;
  bool has_other_ranks() const override { return !ranks().is_alone(); }
  Result<std::uint64_t> save_together(const std::string& folder,
                                      const CheckpointState& state) override;
  CheckpointState checkpoint_state() const override;

  // All masters under Hugging Face's names, adapters under PEFT's, as one safetensors file.
  Status save_weights(const std::string& path, DType dtype);

  // Start it before the first step to have a trace; with several ranks, on each.
  TraceLog& trace() { return parts_->trace(); }
  // After the last step: what all ranks have traced, as one file. Replaces what is there.
  Status write_trace(const std::string& path);

  RunDrives& drives() { return parts_->drives(); }
  aio::Executor& executor() override { return parts_->update_executor(); }
  const config::Config& config() const { return config_; }
  const MemoryPlan& plan() const override { return plan_; }
  const ModelLayout& model() const override { return model_->layout(); }
  Trainer& trainer() { return *trainer_; }
  std::uint64_t tokens_per_step() const;
  std::uint64_t samples_per_epoch() const { return data_->samples_per_epoch(); }
  bool has_validation() const { return data_->has_validation(); }

  // After the last step, of all ranks: their sums, and of the fullest GPU.
  using Memory = Resources::Memory;
  Memory memory() const;
  GpuUse gpu_use() const;  // during the last step, of all ranks' GPUs

  using Traffic = Resources::Traffic;
  Traffic traffic() const;  // since create(); of all ranks, after the last step

 private:
  TrainingRun(const config::Config& config, const MemoryPlan& plan);
  const RankLink& ranks() const { return parts_->ranks(); }
  enum class Order : std::uint8_t { kStep, kEvaluate, kTakeState, kSave, kTrace, kEnd };
  nlohmann::json beginning(const Status& own) const;
  Status lead(Order order);
  // What one rank's step moved, took and holds.
  struct StepFigures;
  // Sums of them, and of times the longest, which go into the step's outcome.
  Status share_figures(StepOutcome& outcome);
  GpuUse own_gpu_use() const;
  Result<TraceLog::Others> gather_traces(TraceProcess& own);
  StepOutcome one_step();
  double evaluate_all();
  LossSum evaluate_pass(std::uint64_t first, LossSum total);
  std::uint64_t evaluation_group() const;
  Status set_initial_state(const Progress& progress);
  // Of what load_base() leaves to do.
  Progress behind_base(const Progress& progress) const;
  Status load_base(const Progress& progress);
  BaseParameters* base() const {
    return parts_->parameters().base();
  }  // null: the model is trained

  const config::Config config_;
  const MemoryPlan plan_;
  // Whether the other ranks are where this one is: else nothing is said to them at the end.
  bool is_in_step_ = false;
  Traffic all_traffic_;               // with several ranks
  Memory all_memory_;                 // likewise
  GpuUse all_gpu_use_;                // likewise
  std::string stored_configuration_;  // in its checkpoints
  std::unique_ptr<Model> model_;
  std::unique_ptr<RunData> data_;
  std::unique_ptr<Resources> parts_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace sluice::engine
