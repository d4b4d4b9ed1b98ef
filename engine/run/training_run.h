// TrainingRun: builds and connects everything a configuration asks for: drives, offloaders, model,
// data, trainer. Its plan (memory_plan.h) is made before anything is allocated.
//
// What the configuration places on nvme is in two stores, sluice-<name>-params and
// sluice-<name>-optimizer, on its paths. <name> follows from the run's directory. A run thus finds
// and replaces the stores of its own killed predecessor.
//
// Threads: one.
// Errors:  create() and the calls that return Status return them; step() and evaluate() throw as
//          Trainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "engine/device/host.h"
#include "engine/run/joint_copy_save.h"
#include "engine/run/run_data.h"
#include "engine/run/saved_run.h"
#include "engine/run/token_feed.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/trainer.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

class TrainingRun final : public SavedRun, private LedCopySave {
 public:
  // `plan` is the plan of this configuration. The state is not set yet: call initialise() or
  // resume().
  //
  // With several ranks, each rank creates a TrainingRun with its own plan over `link`, which must
  // outlive it, and each initialises or resumes. Then the first rank leads: the others repeat its
  // remaining calls in follow(), until it is destroyed. A rank that fails must destroy its run and
  // then abort the link, so that the others do not wait.
  //
  // All its IO goes through what `make_backend` makes.
  static Result<std::unique_ptr<TrainingRun>> create(
      const config::Config& config, const MemoryPlan& plan, Communicator& link = single_process(),
      const MakeBackend& make_backend = make_run_backend);
  bool is_first_rank() const { return ranks().part.rank == 0; }
  // Called on every rank once its state is set, or has failed with `own`. No rank continues before
  // all can. All ranks get an error if one has failed, or reads other data or weights than the
  // first rank. The first rank's error names the cause and the rank; the others get kCancelled.
  Status begin_together(const Status& own);
  // For the other ranks. Throws as step() does.
  Status follow();
  ~TrainingRun() override;  // removes the stores
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // Sets masters from model.init_from or at random, and moments to zero. If adapters are trained,
  // those are the base's weights, and the adapters come from recipe.lora.adapter or are random.
  // Progress counts elements, one call at a time, on any thread. An error that it returns ends the
  // call.
  using Progress = RunState::Progress;
  Status initialise(const Progress& progress);
  // Restores all state from the checkpoint instead, so that the next step is bit-identical to that
  // of a run that never stopped. kInvalidArgument names what differs between the two runs. A
  // different number of CPU threads, which may change last bits, only causes a warning.
  Status resume(CheckpointReader& checkpoint, const Progress& progress);

  StepOutcome step();
  // Evaluates run.eval_batches batches of the validation data, or all of it if that is less.
  double evaluate();
  // If samples.prompts is set: feeds tokens as TokenFeed does; with `begins` those of another text.
  // Changes nothing that training uses.
  std::vector<float> next_logits(std::span<const std::int64_t> tokens, bool begins);

  Status take_state(const TakeState& take, offload::Calls calls) override;
  using SavedRun::take_state;
  Result<std::uint64_t> save_together(const std::string& folder,
                                      const CheckpointState& state) override;
  LedCopySave* copy_save() override { return has_other_ranks() ? this : nullptr; }
  CheckpointState checkpoint_state() const override;
  RunState settled_state() override;
  // Call it before a step that a save probably follows: then a save in place pauses training for
  // less time.
  void expect_save(bool expected) { trainer_->expect_save(expected); }

  // All masters as one safetensors file: under Hugging Face's names, or PEFT's for adapters.
  Status save_weights(const std::string& path, DType dtype);

  // Start it before the first step to record a trace; with several ranks, on each rank.
  TraceLog& trace() { return parts_->trace(); }
  // After the last step: writes the traces of all ranks as one file, replacing `path`.
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

  // After the last step: sums over all ranks, and the values of the fullest GPU.
  using Memory = Resources::Memory;
  Memory memory() const;
  GpuUse gpu_use() const;  // during the last step, of all ranks' GPUs

  using Traffic = Resources::Traffic;
  Traffic traffic() const;  // since create(); of all ranks, after the last step

 private:
  TrainingRun(const config::Config& config, const MemoryPlan& plan);
  const RankLink& ranks() const { return parts_->ranks(); }
  enum class Order : std::uint8_t {
    kStep,
    kEvaluate,
    kFeed,
    kTakeState,
    kSave,
    kMakeCopies,
    kCopy,
    kBeginSave,
    kEndSave,
    kTrace,
    kEnd,
  };
  nlohmann::json beginning(const Status& own) const;
  Status lead(Order order);
  Status make_copies() override;
  Status copy() override;
  Status begin(const std::string& folder) override;
  bool is_written() const override { return !all_ || all_->is_saved; }
  Result<std::uint64_t> end(const CheckpointState& state) override;
  Status make_own_copy();
  template <typename Do>
  auto led(Order order, const Do& act) -> decltype(act());
  // One rank's traffic, times and memory during a step, or those of all ranks.
  struct StepFigures {
    Traffic traffic;
    Memory memory;
    GpuUse gpu_use;
    StepTimes times;
    bool is_saved = true;  // no thread of a save is writing
  };
  // Combines them over the ranks: sums, and the longest times, which go into the step's outcome.
  Status share_figures(StepOutcome& outcome);
  GpuUse own_gpu_use() const;
  Result<TraceLog::Others> gather_traces(TraceProcess& own);
  StepOutcome one_step();
  double evaluate_all();
  std::vector<float> feed_all(std::vector<std::int64_t> tokens, bool begins);
  LossSum evaluate_pass(std::uint64_t first, LossSum total);
  std::uint64_t evaluation_group() const;
  Status set_initial_state(const Progress& progress);
  // Progress of the work that remains after load_base().
  Progress behind_base(const Progress& progress) const;
  Status load_base(const Progress& progress);
  BaseParameters* base() const {
    return parts_->parameters().base();
  }  // null: the model is trained

  const config::Config config_;
  const MemoryPlan plan_;
  // False if the other ranks are not at the same point: then no message is sent at the end.
  bool is_in_step_ = false;
  std::optional<StepFigures> all_;    // of the last step; only with several ranks
  std::string stored_configuration_;  // for its checkpoints
  std::unique_ptr<Model> model_;
  std::unique_ptr<RunData> data_;
  std::unique_ptr<Resources> parts_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<TokenFeed> feed_;        // null: no samples.prompts
  std::unique_ptr<JointCopySave> copies_;  // null: saves stop training
};

}  // namespace sluice::engine
