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

// State of one parameter, which is the model's.
using TakeState = std::function<Status(const ParameterSpec&, const offload::ConstStateSlice&)>;

// The parameters of a slice of a unit's state.
Status take_parameters(const UnitLayout& layout, const offload::StateSlice& slice,
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
  using Fill = std::function<Status(const ParameterSpec&, const offload::StateSlice&)>;
  // Elements done; one call at a time, on any thread. Its error ends the call.
  using Progress = std::function<Status(std::uint64_t done, std::uint64_t total)>;
  Status set(const Fill& fill, offload::Calls calls, const Progress& progress,
             std::int64_t after_step = 0) const;
  // OptimizerOffloader::amend(): the slices have the state of one parameter's elements as it is.
  Status amend(std::span<const int> units, const Fill& change) const;
  // OptimizerOffloader::snapshot(), of this rank.
  Status take(const TakeState& take, offload::Calls calls) const;
};

}  // namespace sluice::engine
