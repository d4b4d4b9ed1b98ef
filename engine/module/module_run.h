// ModuleRun: the engine's side of training a module whose passes are computed outside of the
// engine, one micro-batch at a time (by the Python package: torch.nn.Module with autograd).
//
//   run->acquire(u); ... forward of u ...; run->release(u);        any order, any number of times
//   run->acquire(u); ... backward of u ...; run->add(u, gradients); run->release(u);
//   run->end_micro_batch();                                        as often as a step has them
//   StepOutcome outcome = run->step(losses);                       norm, clip, AdamW
//
// Placement is the same as in a TrainingRun. Parameters and optimizer state are on their tiers by a
// MemoryPlan, gradients are fp32 sums in the order of micro-batches, and updates overlap with the
// next forward. So placement changes no bit.
//
// A unit's parameters are views() of one storage for the whole run, which acquire() fills and
// release() empties. A view that autograd kept has the unit's numbers, or throws; it never has
// another unit's.
//
// Several ranks share the units. Each has its part of state and parameters, which is gathered when
// a unit is acquired, and adds its micro-batches' gradients to the sums of all. The collectives,
// which all ranks call in one order, are create(), initialise(), load(), acquire(), prefetch(), the
// passes of family_pass.h, end_micro_batch(), step(), save() and save_weights(). Before an update
// the ranks compare the order in which they acquired units. A rank that fails on its own must call
// fail() to end all of them.
//
// Memory:  the plan's; a unit's sums are kept between its uses.
// Threads: one at a time, but not always the same one, because autograd has its own threads.
// Errors:  returned by create(), initialise(), load() and save(); thrown by a step, as TrainError.
//          After abandon_step() a run continues from the beginning of the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/module/module_layout.h"
#include "engine/module/module_plan.h"
#include "engine/run/joint_copy_save.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/saved_run.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/step_engine.h"
#include "engine/runtime/step_update.h"

namespace sluice::engine {

class ModuleRun final : public SavedRun, private LedCopySave {
 public:
  // create() makes the memory plan, and allocates nothing if the plan is refused. The run has no
  // values until initialise() or load().
  struct Environment {
    ModulePlanOptions plan = {};
    Communicator* link = &single_process();  // must outlive the run
    // For a stage of a pipeline: the ranks with this rank's number in all stages, in their order.
    // Norms and skipped steps are then those of the whole pipeline. It must outlive the run.
    Communicator* stages = nullptr;
    // Threads that update and add, for all ranks of this host; 0: as many as compute.
    int workers = 0;
  };
  static Result<std::unique_ptr<ModuleRun>> create(const config::Config& config,
                                                   ModuleLayout layout,
                                                   const Environment& environment);
  ~ModuleRun() override;  // removes the stores

  // The tensors of a unit, in the order in which its parameters were described, of any dtype and on
  // any device. Called once per unit, on any thread.
  using UnitValues = std::function<std::vector<at::Tensor>(int unit)>;
  // Sets masters and frozen parameters from `values`, and moments to zero.
  Status initialise(const UnitValues& values);

  // By described parameter; the same tensors for the whole run.
  const std::vector<at::Tensor>& views(int unit) const { return at(unit).views; }

  // Waits for the unit's update. At most most_acquired() units may be acquired at once, not
  // counting the first. acquire() and release() are idempotent: a caller may have been interrupted
  // before it could note the call.
  void acquire(int unit);
  void release(int unit);
  bool is_acquired(int unit) const { return at(unit).acquired; }
  int most_acquired() const { return most_acquired_; }
  // A hint that the unit will be acquired soon. Never waits.
  void prefetch(int unit);
  // A hint: the units that the coming passes acquire, in order. `trains`: they are of a training
  // micro-batch.
  void expect(const std::vector<int>& passes, bool trains);

  // ---- for a family's model (family_pass.h)
  StepEngine& engine() { return *engine_; }
  // The remaining passes of the current micro-batch.
  offload::SplitProgram passes(bool has_backward) const;
  // Announces to the host the units that these passes need, and the updates before and after them.
  void expect_passes(const offload::SplitProgram& passes, bool has_backward);
  // Call it before backward of these passes.
  void expect_backward();
  void release_all();
  // Opens and closes a unit's sums for everything that the current micro-batch adds: once per
  // micro-batch, unless several passes are expected.
  GradientSink::Target open_gradient(int unit);
  void added_gradient(int unit);
  // From now on a micro-batch may have several backward passes, which are added up, and sums are
  // complete at its end. Call it between steps; it requires that the plan has room for kept sums.
  void expect_several_passes();
  bool can_have_several_passes() const { return plan_.sums.kept > 0; }
  bool has_several_passes() const { return has_several_passes_; }

  // Call it before the first add() of a micro-batch. In a step's last one, state begins to be read
  // from NVMe.
  void begin_backward();
  // Adds to the sums of a unit in the current micro-batch. `gradients`: by described parameter,
  // undefined if there is none. Several calls for one unit add up. `is_last`: the micro-batch's
  // last call for the unit, whose sum then need not be put away and resumed.
  void add(int unit, const std::vector<at::Tensor>& gradients, bool is_last);
  // Whether putting a sum away and resuming it costs a copy.
  bool keeping_costs() const { return plan_.cuda || plan_.gradients; }
  // Parameters without a gradient get one of zero.
  void end_micro_batch();
  std::int64_t micro_batches() const { return plan_.waves.micro_batches; }  // per step
  std::int64_t micro_batch() const { return micro_batch_; }                 // ended in this step
  // The number among all ranks' micro-batches.
  std::int64_t number_in_step(std::int64_t micro_batch) const {
    return plan_.sum_order.number_in_step(micro_batch, ranks().part.rank);
  }
  // How many consecutive micro-batches are added up from zero, as one lane.
  std::int64_t micro_batches_of_a_lane() const { return micro_batches() / plan_.sum_order.lanes(); }
  bool is_complete() const { return micro_batch_ == micro_batches(); }
  // Discards everything added since the last step. With several ranks this ends all of them.
  void abandon_step();
  // With several ranks: ends the others, with this reason.
  void fail(const std::string& reason);
  // The factor for the losses of the step's micro-batches.
  double loss_scale() const { return update_->loss_scale(); }
  // `losses`: of this rank's micro-batches, for the outcome and for the report of a failed step.
  StepOutcome step(const std::vector<double>& losses);
  double learning_rate() const { return update_->learning_rate(); }  // of the next step
  // Returns when every update is applied and everything is written.
  void drain();

  // Locks the directory for the lifetime of this run, for files other than checkpoints. kBusy:
  // another run has it.
  Status own_directory(const std::string& directory);
  // Writes DIR/checkpoints/step-N (engine/checkpoint/FORMAT.md), as a training run does. The
  // directory then belongs to this run. Returns the checkpoint's folder.
  struct SaveOptions {
    std::string directory;
    std::string client;       // a text that load() returns
    bool background = false;  // from a copy of the state, 12 bytes a parameter
    std::optional<double> loss;
    // Permits a save between micro-batches, until the step's last one begins. It contains the state
    // after the last step, without anything added since.
    bool within_step = false;
  };
  Result<std::string> save(const SaveOptions& options);
  // The result of each finished save, once, in order; wait_for_saves() waits for the others, on all
  // ranks together. With several ranks, a save in the background also ends with the step in which
  // the last rank has written its part. An error of a save in the foreground was also returned by
  // save().
  std::vector<SavedCheckpoint> finished_saves();
  void wait_for_saves();
  // `path`: a checkpoint's folder, or a directory whose newest checkpoint is loaded. `accept` gets
  // the text given to save(). If `accept` returns an error, or the run cannot continue from the
  // checkpoint, nothing has changed. Only a checkpoint that turns out to be damaged leaves the run
  // partly loaded. Returns the checkpoint's folder.
  using Accept = std::function<Status(const std::string& client)>;
  Result<std::string> load(const std::string& path, const Accept& accept);
  // From the checkpoints of a pipeline's stages, one of which has each parameter of this run.
  // `accept` gets the text of each. Returns the first one's folder.
  using AcceptParts = std::function<Status(const std::vector<std::string>& clients)>;
  Result<std::string> load_parts(const std::vector<std::string>& paths, const AcceptParts& accept);
  // New values of some parameters, by unit and described parameter, of any dtype. Masters change
  // where `values` differ from `before`, the values at the unit's acquire(). All other masters, the
  // moments and the current step's sums stay. After kInvalidArgument and kUnsupported nothing has
  // changed; any other error ends the run.
  struct NewValues {
    int unit = 0;
    int parameter = 0;
    at::Tensor values;
    at::Tensor before;
  };
  Status change(const std::vector<NewValues>& changes);
  // All masters as one safetensors file of type `dtype`, under the module's names.
  Status save_weights(const std::string& path, DType dtype);

  // Calls from Python come one at a time, from any thread; each holds this mutex.
  std::recursive_mutex& calls() { return calls_; }

  // If the planner was asked: its prediction and its assumptions.
  std::optional<double> predicted_step_s() const { return predicted_step_s_; }
  const std::string& prediction() const { return prediction_; }  // as prediction_json()
  const std::vector<std::string>& assumptions() const { return assumptions_; }

  const TrainState& train_state() const { return update_->state(); }
  const config::Config& config() const { return config_; }
  const ModuleLayout& layout() const { return layout_; }
  offload::ParamStats param_stats() const { return parts_->parameters().stats(); }

  Resources::Traffic traffic() const { return parts_->traffic(); }
  Resources::Memory memory() const { return parts_->memory(); }
  GpuUse take_gpu_use();  // this rank's GPU, since the previous call
  aio::IoQueue& file_queue() { return *parts_->drives().saves; }  // for small files of the caller
  // Start the trace before the run's first step.
  TraceLog& trace() { return parts_->trace(); }

  using SavedRun::take_state;
  Status take_state(const TakeState& take, offload::Calls calls) override;
  CheckpointState checkpoint_state() const override;
  RunState settled_state() override;
  LedCopySave* copy_save() override { return has_other_ranks() ? this : nullptr; }
  Result<std::uint64_t> save_together(const std::string& folder,
                                      const CheckpointState& state) override;
  aio::Executor& executor() override { return parts_->update_executor(); }
  const MemoryPlan& plan() const override { return plan_; }
  const ModelLayout& model() const override { return layout_.trained(); }

 private:
  struct Unit {
    std::vector<at::Tensor> views;  // empty until the state exists
    bool acquired = false;
    bool begun = false;  // has a target in this micro-batch
    bool ended = false;  // has all of this micro-batch's gradients
    // By parameter of the trained layout: whether it has a sum. The other sums are uninitialised.
    std::vector<bool> summed;
  };

  ModuleRun(const config::Config& config, ModuleLayout layout, MemoryPlan plan);
  Status make_parts(const Environment& environment);
  const RankLink& ranks() const { return parts_->ranks(); }
  Status make_views();
  Status initialise_own(const UnitValues& values);
  Status load_frozen(const UnitValues& values);
  Result<NewValues> checked(const NewValues& change) const;
  Status change_frozen(const NewValues& change);
  using Readers = std::vector<std::unique_ptr<CheckpointReader>>;
  Status check_part(const CheckpointReader& part, const CheckpointReader& first,
                    const std::string& folder) const;
  Status check_parameters(const Readers& checkpoints) const;
  Result<std::unique_ptr<CheckpointReader>> open_checkpoint(const std::string& path,
                                                            std::string& folder);
  Result<std::string> save_as_first(const SaveOptions& options);
  Result<std::string> load_own(const std::vector<std::string>& paths, const AcceptParts& accept);

  // ---- several ranks (module_ranks.cc)
  // The totals of all stages, from those of this one.
  GradientTotals over_stages(const GradientTotals& own) const;
  bool is_first() const { return ranks().part.rank == 0; }
  // What the first rank has the others do for its saves.
  enum class SaveOrder : std::uint8_t { kSave, kMakeCopies, kCopy, kBegin, kEnd, kDone };
  Status lead(SaveOrder order);
  // Follows orders until kDone.
  Result<std::string> follow_save();
  Status make_copies() override;
  Status copy() override;
  Status begin(const std::string& folder) override;
  // Only what all ranks call together ends a save: step(), save(), wait_for_saves().
  bool is_written() const override { return false; }
  Result<std::uint64_t> end(const CheckpointState& state) override;
  Status make_own_copy();
  // Ends a save in the background of several ranks, if there is one. Collective.
  void wait_for_saves_together();
  bool is_saving_together() const { return copies_ != nullptr && copies_->is_saving(); }
  // The first rank's answer, after all ranks have one; or the error of any rank.
  Result<std::string> agree(const Result<std::string>& own) const;
  // Units are gathered by all ranks, so all must use them in one order: compares the orders. Finds
  // out as well whether all have written their parts of a save.
  void check_order();

  Status lock_directory(const std::string& path);
  Status save_into(const std::string& directory, bool background);
  void end_saves();
  bool has_trained(int unit) const { return model().layout(unit).elements > 0; }
  bool has_frozen(int unit) const { return layout_.frozen().layout(unit).elements > 0; }
  const UnitViews& begin(int unit);
  void complete(int unit, const UnitViews& sums);
  void end(int unit);
  void put_away(int unit);
  void check_ends(int unit) const;
  bool in_last_micro_batch() const { return micro_batch_ + 1 == micro_batches(); }

  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  const config::Config config_;
  const ModuleLayout layout_;
  const MemoryPlan plan_;
  std::optional<MemoryPlan> frozen_plan_;
  std::optional<double> predicted_step_s_;
  std::string prediction_;
  std::vector<std::string> assumptions_;
  const UpdateRules rules_;
  int most_acquired_ = 0;
  std::string client_;    // of the current save
  bool is_saved_ = true;  // on all ranks, when the last step's gradients were added

  std::vector<Unit> units_;
  std::int64_t micro_batch_ = 0;
  bool is_touched_ = false;     // something was added since the last step
  bool awaits_update_ = false;  // state begins to be read for the step's end

  Communicator* stages_ = nullptr;
  std::unique_ptr<Resources> parts_;
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<StepUpdate> update_;

  std::string directory_;  // of checkpoints, once there is one
  std::string home_;       // own_directory()
  std::map<std::string, std::unique_ptr<aio::FileLock>> locks_;  // on the two directories
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<JointCopySave> copies_;     // null: no save in the background of several ranks
  bool saves_in_background_ = false;          // setting of checkpoints_
  std::vector<SavedCheckpoint> ended_saves_;  // not returned by finished_saves() yet
  bool has_several_passes_ = false;
  std::recursive_mutex calls_;
};

}  // namespace sluice::engine
