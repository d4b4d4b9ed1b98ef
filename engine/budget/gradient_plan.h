// Gradients on NVMe between backward and update. They are stored as units of parameters are
// (ParamOffloader), in a store of their own.
//
// On a GPU a unit's place is as large as it would be in memory. It holds the 16-bit gradient, or
// the fp32 sums that a wave leaves for the next. A unit whose state is all on the GPU has none.
// Without a GPU the place holds the fp32 sums, and then the 16-bit gradient. That is supported for
// a described model that trains in one process, and adds up one sum of a unit at a time.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "aio/result.h"
#include "engine/budget/run_spec.h"
#include "offload/params/param_offloader.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

// Why the run cannot keep gradients on NVMe, as a clause; null: it can.
const char* why_no_gradients_on_nvme(const RunSpec& spec);
// Whether the planner may choose RunSpec::moves_gradients.
bool may_move_gradients(const RunSpec& spec);
// kUnsupported if the configuration asks for it and the run cannot do it.
Status check_gradients_on_nvme(const RunSpec& spec);

// Buffers per size class.
int gradient_buffers(const RunSpec& spec);

// Empty: no unit has a gradient on the host.
std::optional<offload::ParamOffloader::Options> plan_gradients(
    const RunSpec& spec, const offload::UnitResidency& residency, std::vector<int> nvme_weights);

// Bytes of a unit's place, if the host updates some of it.
std::uint64_t gradient_place_bytes(const RunSpec& spec, int unit);

}  // namespace sluice::engine
