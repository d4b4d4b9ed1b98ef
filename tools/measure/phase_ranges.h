// PhaseRanges: the phases of a step as ranges in what LibTorch's profiler records, so that kernels
// and operators can be told apart by the phase that asked for them.
//
//   const PhaseRanges ranges(run.trainer());
//   record_gpu(steps, {.by_phase = true});
//
// While it is there, the trainer's thread opens a range for each phase: one callback, and with a
// profiler that is on about a microsecond.
//
// Threads: the one that trains.
#pragma once

#include <optional>
#include <string_view>

#include "engine/observe/pass_span.h"
#include "engine/runtime/trainer.h"

namespace sluice::tools {

class PhaseRanges {
 public:
  explicit PhaseRanges(engine::Trainer& trainer);
  ~PhaseRanges() { trainer_.phases_heard_by({}); }
  PhaseRanges(const PhaseRanges&) = delete;
  PhaseRanges& operator=(const PhaseRanges&) = delete;

 private:
  engine::Trainer& trainer_;
};

// Of a recorded range's name; nothing: it is none of these.
std::optional<engine::PassPhase> phase_of_range(std::string_view name);

}  // namespace sluice::tools
