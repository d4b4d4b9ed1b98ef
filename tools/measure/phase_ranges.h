// PhaseRanges: marks the phases of a step as ranges in recordings of LibTorch's profiler, so that
// kernels and operators can be assigned to the phase that launched them.
//
//   const PhaseRanges ranges(run.trainer());
//   record_gpu(steps, {.by_phase = true});
//
// While the object exists, the trainer's thread opens a range for each phase. This costs one
// callback and, while a profiler is on, about a microsecond.
//
// Threads: the training thread.
#pragma once

#include <optional>
#include <string_view>

#include "engine/observe/pass_span.h"
#include "engine/runtime/trainer.h"

namespace sluice::tools {

class PhaseRanges {
 public:
  explicit PhaseRanges(engine::Trainer& trainer);
  ~PhaseRanges() { trainer_.set_phase_listener({}); }
  PhaseRanges(const PhaseRanges&) = delete;
  PhaseRanges& operator=(const PhaseRanges&) = delete;

 private:
  engine::Trainer& trainer_;
};

// The phase of a recorded range's name; nullopt if the range is not a phase.
std::optional<engine::PassPhase> phase_of_range(std::string_view name);

}  // namespace sluice::tools
