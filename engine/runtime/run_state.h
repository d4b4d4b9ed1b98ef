// RunState: a run's master weights and moments by parameter, whichever tier they are on.
//
// Threads: one; callbacks run on any thread of the optimizer's executor.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/stored_records.h"
#include "engine/model/model_layout.h"
#include "engine/step/unit_parameters.h"
#include "offload/params/param_offloader.h"
#include "offload/state/optimizer_offloader.h"

namespace sluice::engine {

// Gets state of one parameter of the model.
using TakeState = std::function<Status(const ParameterSpec&, const offload::ConstStateSlice&)>;

// Calls `take` for each parameter in a slice of a unit's state.
Status take_parameters(const UnitLayout& layout, const offload::StateSlice& slice,
                       const TakeState& take);

// All must outlive it.
struct RunState {
  offload::OptimizerOffloader* optimizer = nullptr;
  offload::ParamOffloader* params = nullptr;  // trained parameters
  UnitParameters* units = nullptr;
  const ModelLayout* model = nullptr;
  offload::RankPart ranks = {};

  // The elements of this rank's state, including the gaps between parameters.
  std::uint64_t elements() const;

  // Sets the state of one parameter's elements; the moments are zero on entry. `after_step`: see
  // OptimizerOffloader::restore(). Like amend(), invalidates what units were gathered from before.
  using Fill = std::function<Status(const ParameterSpec&, const offload::StateSlice&)>;
  // Gets the number of elements done, one call at a time, on any thread. An error that it returns
  // ends the operation.
  using Progress = std::function<Status(std::uint64_t done, std::uint64_t total)>;
  Status set(const Fill& fill, offload::Calls calls, const Progress& progress,
             std::int64_t after_step = 0) const;
  // See OptimizerOffloader::amend(). Each slice holds the current state of one parameter's
  // elements.
  Status amend(std::span<const int> units, const Fill& change) const;
  // See OptimizerOffloader::snapshot(). Visits this rank's state.
  Status take(const TakeState& take, offload::Calls calls) const;

  // ---- for a save in place, of one rank
  // Freezes the state on NVMe for the checkpoint with this folder; see
  // OptimizerOffloader::freeze().
  Result<StoredRecords> freeze(const std::string& folder) const;
  // The pieces of the state that is not on NVMe, and their state, in the same order.
  StatePieces pieces_beside_store() const;
  Status take_beside_store(const TakeState& take) const;

 private:
  Status take_of(offload::SnapshotOf what, const TakeState& take, offload::Calls calls) const;
};

}  // namespace sluice::engine
