// ModuleRun: the engine's side of training a module whose passes are computed by somebody else,
// micro-batch by micro-batch (the Python package: torch.nn.Module under autograd).
//
//   run->acquire(u); ... forward of u ...; run->release(u);        any order, any number of times
//   run->acquire(u); ... backward of u ...; run->add(u, gradients); run->release(u);
//   run->end_micro_batch();                                        as often as a step has them
//   StepOutcome outcome = run->step(losses);                       norm, clip, AdamW
//
// What lies where is the same as in a TrainingRun: parameters and optimizer state on their tiers by
// a MemoryPlan, gradients in fp32 sums in the order of micro-batches, updates under the next
// forward. So placement changes no bit.
//
// A unit's parameters are views() of one storage for the whole run, filled by acquire() and emptied
// by release(): a view that autograd kept has the unit's numbers, or throws. It never has another
// unit's.
//
// Several ranks share the units: each has its part of state and parameters, which is gathered when
// a unit is acquired, and gives its micro-batches' gradients to the sums of all. What all of them
// have to call, in one order, are create(), initialise(), load(), acquire(), prefetch(),
// the passes of family_pass.h, end_micro_batch(), step(), save() and save_weights(). Before an
// update they compare the order of units that they had; a rank that fails by itself has to fail()
// all of them.
//
// Memory:  the plan's; a unit's sums are kept between its uses.
// Threads: one at a time, but not always the same one: autograd has threads of its own.
// Errors:  of create(), initialise(), load() and save() as values; of a step as TrainError. After
//          abandon_step() a run goes on where the step began.
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
#include "engine/run/run_checkpoints.h"
#include "engine/run/saved_run.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/step_engine.h"
#include "engine/runtime/step_update.h"

namespace sluice::engine {

class ModuleRun final : public SavedRun {
 public:
  // The memory plan is made here, and nothing is taken where it is refused. Without values:
  // initialise() or load() comes next.
  struct Environment {
    ModulePlanOptions plan = {};
    Communicator* link = nullptr;  // of several ranks; must outlive it
    // Threads that update and add, of all ranks of this host; 0: as many as compute.
    int workers = 0;
  };
  static Result<std::unique_ptr<ModuleRun>> create(const config::Config& config,
                                                   ModuleLayout layout,
                                                   const Environment& environment);
  ~ModuleRun() override;  // removes the stores

  // The tensors of a unit, in the order in which its parameters were described, of any type of
  // numbers and on any device. Called unit by unit, on any thread.
  using UnitValues = std::function<std::vector<at::Tensor>(int unit)>;
  // Masters from there, moments zero, and what is frozen.
  Status initialise(const UnitValues& values);

  // By described parameter; the same for the whole run.
  const std::vector<at::Tensor>& views(int unit) const { return at(unit).views; }

  // Waits for the unit's update. No more than most_acquired() units at once, the first aside. Both
  // do nothing where that is done: who calls may have been interrupted before it could note it.
  void acquire(int unit);
  void release(int unit);
  bool is_acquired(int unit) const { return at(unit).acquired; }
  int most_acquired() const { return most_acquired_; }
  // The unit will be acquired soon. Never waits.
  void prefetch(int unit);
  // The units that the coming passes acquire, in their order; `trains`: of a micro-batch. A hint.
  void expect(const std::vector<int>& passes, bool trains);

  // ---- of a family's model (family_pass.h)
  StepEngine& engine() { return *engine_; }
  // The passes that come next, of the micro-batch that goes on.
  offload::SplitProgram passes(bool has_backward) const;
  // What the host is asked for by them, and by the updates before and after.
  void expect_passes(const offload::SplitProgram& passes, bool has_backward);
  // Before backward of these.
  void expect_backward();
  void release_all();
  // The sums of a unit, for all that the micro-batch that goes on adds to it, and the end of that:
  // once a micro-batch, unless several passes are expected.
  GradientSink::Target open_gradient(int unit);
  void added_gradient(int unit);
  // From here on a micro-batch may have several backward passes, which add up, and sums are
  // complete at its end. Between steps, where the plan has room for sums that are kept.
  void expect_several_passes();
  bool can_have_several_passes() const { return plan_.sums.kept > 0; }
  bool has_several_passes() const { return has_several_passes_; }

  // Before the first add() of a micro-batch: state begins to come from NVMe for the step's end.
  void begin_backward();
  // Adds to the sums of a unit, in the micro-batch that goes on: `gradients` by described
  // parameter, undefined where there is none. Several calls for one unit add up, until one says
  // that it is the micro-batch's last: then its gradient need not be put away and taken up again.
  void add(int unit, const std::vector<at::Tensor>& gradients, bool is_last);
  // Whether a sum that is put away and taken up again is copied.
  bool keeping_costs() const { return plan_.cuda || plan_.gradients; }
  // What had no gradient has one of zero.
  void end_micro_batch();
  std::int64_t micro_batches() const { return plan_.waves.micro_batches; }  // of a step
  std::int64_t micro_batch() const { return micro_batch_; }                 // ended in this one
  // Of all ranks' micro-batches.
  std::int64_t number_in_step(std::int64_t micro_batch) const {
    return plan_.sum_order.number_in_step(micro_batch, ranks().part.rank);
  }
  bool is_complete() const { return micro_batch_ == micro_batches(); }
  // Forgets what was added since the last step. With several ranks that ends all of them.
  void abandon_step();
  // With several ranks: ends the others, with this reason.
  void fail(const std::string& reason);
  // By what the losses of the step's micro-batches have to be multiplied.
  double loss_scale() const { return update_->loss_scale(); }
  // `losses`: of its micro-batches, for the outcome and for what a step that fails points to.
  StepOutcome step(const std::vector<double>& losses);
  double learning_rate() const { return update_->learning_rate(); }  // of the next step
  // Every update applied, everything on its way written.
  void drain();

  // The directory is this run's until it goes: for what it keeps there beside checkpoints. kBusy:
  // it is another's.
  Status own_directory(const std::string& directory);
  // DIR/checkpoints/step-N (engine/checkpoint/FORMAT.md), as a training run's; the directory
  // belongs to this run from then on. Returns the checkpoint's folder.
  struct SaveOptions {
    std::string directory;
    std::string client;       // a text that comes back from load()
    bool background = false;  // from a copy of the state, which takes 12 bytes a parameter
    std::optional<double> loss;
    // Also between micro-batches, as long as the step's last one has not begun: the state is that
    // of the last step, and what was added since is not in it.
    bool within_step = false;
  };
  Result<std::string> save(const SaveOptions& options);
  // What became of each save, once, in order; those that go on are left out, and wait_for_saves()
  // waits for them. Of one in the foreground save() has returned the error as well.
  std::vector<SavedCheckpoint> finished_saves();
  void wait_for_saves();
  // A checkpoint's folder, or a directory, of which it is the newest; `accept` gets what save() was
  // given. Nothing has changed where that returns an error, or anything is found that keeps this
  // run from going on there; only a checkpoint that turns out to be damaged leaves it half set.
  // Returns the checkpoint's folder.
  using Accept = std::function<Status(const std::string& client)>;
  Result<std::string> load(const std::string& path, const Accept& accept);
  // New values of some parameters, by unit and described parameter, of any type of numbers. Masters
  // change where `values` differ from `before`, which a unit had when it was acquired; all others,
  // moments and what the step has so far stay. After kInvalidArgument and kUnsupported nothing has
  // changed; any other error ends the run.
  struct NewValues {
    int unit = 0;
    int parameter = 0;
    at::Tensor values;
    at::Tensor before;
  };
  Status change(const std::vector<NewValues>& changes);
  // All masters as one safetensors file, under the module's names, in this type of numbers.
  Status save_weights(const std::string& path, DType dtype);

  // Calls from Python come one at a time, from whichever threads: each holds this.
  std::recursive_mutex& calls() { return calls_; }

  // Where the planner was asked: what it predicted, and what it took for granted.
  std::optional<double> predicted_step_s() const { return predicted_step_s_; }
  const std::string& prediction() const { return prediction_; }  // as prediction_json()
  const std::vector<std::string>& assumptions() const { return assumptions_; }

  const TrainState& train_state() const { return update_->state(); }
  const config::Config& config() const { return config_; }
  const ModuleLayout& layout() const { return layout_; }
  offload::ParamStats param_stats() const { return parts_->parameters().stats(); }

  Resources::Traffic traffic() const { return parts_->traffic(); }
  Resources::Memory memory() const { return parts_->memory(); }
  GpuUse take_gpu_use();  // of this rank's GPU, since the call before
  aio::IoQueue& file_queue() { return *parts_->drives().saves; }  // for small files of its own
  // Start it before the first step of it.
  TraceLog& trace() { return parts_->trace(); }

  using SavedRun::take_state;
  Status take_state(const TakeState& take, offload::Calls calls) override;
  CheckpointState checkpoint_state() const override;
  bool has_other_ranks() const override { return !ranks().is_alone(); }
  Result<std::uint64_t> save_together(const std::string& folder,
                                      const CheckpointState& state) override;
  aio::Executor& executor() override { return parts_->update_executor(); }
  const MemoryPlan& plan() const override { return plan_; }
  const ModelLayout& model() const override { return layout_.trained(); }

 private:
  struct Unit {
    std::vector<at::Tensor> views;  // empty until the state is there
    bool acquired = false;
    bool begun = false;  // has a target in this micro-batch
    bool ended = false;  // and all that comes in it
    // By parameter of the layout of what is trained: has a sum. Others hold any values.
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
  Status check_parameters(CheckpointReader& checkpoint) const;
  Result<std::unique_ptr<CheckpointReader>> open_checkpoint(const std::string& path,
                                                            std::string& folder);
  Result<std::string> save_as_first(const SaveOptions& options);
  Result<std::string> load_own(const std::string& path, const Accept& accept);

  // ---- several ranks (module_ranks.cc)
  bool is_first() const { return ranks().part.rank == 0; }
  // Whether they save now.
  Status tell_others(bool saves);
  Result<std::string> follow_save();
  // The first rank's answer, once all of them are there; an error of any.
  Result<std::string> agree(const Result<std::string>& own) const;
  // What is gathered is gathered by all ranks: noted, and compared.
  void check_order();

  Status lock_directory(const std::string& path);
  Status save_into(const std::string& directory, bool background);
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
  std::string client_;    // of the save that goes on
  bool is_told_ = false;  // likewise: the other ranks know that they save

  std::vector<Unit> units_;
  std::int64_t micro_batch_ = 0;
  bool is_touched_ = false;     // something was added since the last step
  bool awaits_update_ = false;  // state begins to come for the step's end

  std::unique_ptr<Resources> parts_;
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<StepUpdate> update_;

  std::string directory_;  // of its checkpoints, once it has one
  std::string home_;       // own_directory()
  std::map<std::string, std::unique_ptr<aio::FileLock>> locks_;  // of the two
  std::unique_ptr<RunCheckpoints> checkpoints_;
  bool saves_in_background_ = false;          // checkpoints_
  std::vector<SavedCheckpoint> ended_saves_;  // that nobody asked for yet
  bool has_several_passes_ = false;
  std::recursive_mutex calls_;
};

}  // namespace sluice::engine
