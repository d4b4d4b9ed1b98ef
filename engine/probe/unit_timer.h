// The seconds of one micro-batch through the units of a model: forward, recompute and backward of
// the embedding, one block of each kind and the head, as the training loop calls them, on the
// device that computes. All units of a kind are alike, so one stands for all.
//
// Random parameters and inputs. One sequence first, which warms up and shows how long the rest will
// take: where a whole micro-batch would take too long (large models on a CPU), the times are those
// of one sequence, multiplied. Otherwise whole micro-batches, and the median of a few.
//
// Memory:  unit_timer_bytes() on the device, given back before it returns.
// Threads: one; blocking, about options.seconds once the device is warm.
// Errors:  kOutOfMemory, before anything is taken, where the limit is too small; LibTorch's own
//          errors.
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
  PassSpread* spread = nullptr;  // of its rounds; may be null
};

std::uint64_t unit_timer_bytes(const ModelLayout& model, const UnitTimerOptions& options);

Result<UnitTimes> time_units(const Model& model, const UnitTimerOptions& options,
                             const std::function<void(double)>& on_progress = {});

}  // namespace sluice::engine
