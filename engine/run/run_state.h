// RunState: master weights and moments of a run, parameter by parameter, wherever they lie; and
// SavedRun: a run of which checkpoints are made (run_checkpoints.h), whoever computes its passes.
//
// Threads: one; callbacks come on any thread of the optimizer's executor.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/model/model_layout.h"
#include "engine/step/unit_parameters.h"
#include "offload/params/param_offloader.h"
#include "offload/state/optimizer_offloader.h"

namespace sluice::engine {

// Elements [first, first + master.size()) of one parameter: its master weights and moments.
struct ParameterState {
  const ParameterSpec* parameter = nullptr;  // the model's
  std::uint64_t first = 0;
  std::span<const float> master;
  std::span<const float> exp_avg;
  std::span<const float> exp_avg_sq;
};
using TakeState = std::function<Status(const ParameterState& state)>;

// The parameters of a range of a unit's state.
Status take_parameters(const UnitLayout& layout, const offload::StateRange& range,
                       const TakeState& take);

// All must outlive it.
struct RunState {
  offload::OptimizerOffloader* optimizer = nullptr;
  offload::ParamOffloader* params = nullptr;  // of what is trained
  UnitParameters* units = nullptr;
  const ModelLayout* model = nullptr;
  offload::RankPart ranks = {};

  // With the gaps; of this rank.
  std::uint64_t elements() const;

  // Sets the state of one parameter's elements; the moments are zero before. `after_step`: see
  // OptimizerOffloader::restore().
  struct Spans {
    const ParameterSpec& parameter;
    std::uint64_t first;
    StateSpans values;
  };
  using Fill = std::function<Status(const Spans&)>;
  // Elements done; one call at a time, on any thread. Its error ends the call.
  using Progress = std::function<Status(std::uint64_t done, std::uint64_t total)>;
  Status set(const Fill& fill, offload::Calls calls, const Progress& progress,
             std::int64_t after_step = 0) const;
  // OptimizerOffloader::amend(): the spans have the state of one parameter's elements as it is.
  Status amend(std::span<const int> units, const Fill& change) const;
  // OptimizerOffloader::snapshot(), of this rank.
  Status take(const TakeState& take, offload::Calls calls) const;

  Status fill_range(const Fill& fill, const offload::StateRange& range) const;
};

class SavedRun {
 public:
  virtual ~SavedRun() = default;

  // After the last step, range by range in the order of the model's parameters; with kAnyOrder
  // several ranges at once, in any order. Either way on any thread of executor(). With several
  // ranks range by range, in order, on the calling thread.
  virtual Status take_state(const TakeState& take, offload::Calls calls) = 0;
  Status take_state(const TakeState& take) { return take_state(take, offload::Calls::kInOrder); }
  // What else a checkpoint holds; without scores.
  virtual CheckpointState checkpoint_state() const = 0;
  // With several ranks, which all write at the same time: a checkpoint in `folder`, which it
  // replaces (joint_save.h). The bytes of its files.
  virtual bool has_other_ranks() const { return false; }
  virtual Result<std::uint64_t> save_together(const std::string& folder,
                                              const CheckpointState& state);

  virtual aio::Executor& executor() = 0;  // a step's; between steps free
  virtual const MemoryPlan& plan() const = 0;
  virtual const ModelLayout& model() const = 0;

 protected:
  SavedRun() = default;
  SavedRun(const SavedRun&) = default;
  SavedRun& operator=(const SavedRun&) = default;
};

}  // namespace sluice::engine
