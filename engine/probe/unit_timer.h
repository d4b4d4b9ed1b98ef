// The seconds of one micro-batch through the units of a model, on the compute device: forward,
// recompute and backward, called as in the training loop. It times the embedding, one block of each
// kind and the head. All units of a kind are alike, so one stands for all.
//
// Parameters and inputs are random. One sequence is timed first, which warms up and predicts the
// rest. If a whole micro-batch would take too long (large models on a CPU), the times are those of
// one sequence, multiplied. Otherwise whole micro-batches are timed, and the result is the median
// of a few.
//
// Memory:  unit_timer_bytes() on the device, freed before the return.
// Threads: one; blocking, about options.seconds once the device is warm.
// Errors:  kOutOfMemory, before any allocation, if the limit is too small; LibTorch's own errors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "aio/result.h"
#include "engine/model/model.h"
#include "engine/model/torch_types.h"
#include "engine/probe/timed_passes.h"
#include "engine/probe/unit_times.h"

namespace sluice::engine {

struct UnitTimerOptions {
  c10::Device device = c10::kCPU;
  offload::ElementType type = offload::ElementType::kBf16;
  std::int64_t micro_batch = 1;
  std::int64_t tokens = 0;
  bool deterministic = false;
  double seconds = 1.0;
  std::optional<std::uint64_t> memory_limit_bytes;
  PassSpread* spread = nullptr;  // over its rounds; may be null
};

std::uint64_t unit_timer_bytes(const ModelLayout& model, const UnitTimerOptions& options);

Result<UnitTimes> time_units(const Model& model, const UnitTimerOptions& options,
                             const std::function<void(double)>& on_progress = {});

}  // namespace sluice::engine
