// RunState: master weights and moments of a run, parameter by parameter, on whatever tier they are.
//
// Threads: one; callbacks come on any thread of the optimizer's executor.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
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

}  // namespace sluice::engine
