// PassSpan: one activity of the compute device in a step, or one of its waits: a phase of one unit,
// and of one micro-batch if the phase is per micro-batch. Traces show them, profiles add them up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::engine {

enum class PassPhase : std::uint8_t {
  kForward,
  kLoss,       // forward and backward of the head, together
  kRecompute,  // what backward needs and forward did not save
  kBackward,
  kGradient,     // sums are prepared, added to each other, cast and sent
  kAwaitParams,  // the unit's: a copy, a gather or a drive
  kAwaitInputs,  // the unit's input, on its way out or back
};
inline constexpr std::size_t kPassPhases = 7;
constexpr bool is_wait(PassPhase phase) { return phase >= PassPhase::kAwaitParams; }
constexpr const char* phase_name(PassPhase phase) {
  switch (phase) {
    case PassPhase::kForward:
      return "forward";
    case PassPhase::kLoss:
      return "loss";
    case PassPhase::kRecompute:
      return "recompute";
    case PassPhase::kBackward:
      return "backward";
    case PassPhase::kGradient:
      return "gradient";
    case PassPhase::kAwaitParams:
      return "await parameters";
    case PassPhase::kAwaitInputs:
      return "await input";
  }
  return "?";
}

struct PassSpan {
  PassPhase phase = PassPhase::kForward;
  int unit = 0;
  int wave = 0;
  std::int64_t micro_batch = -1;  // in the rank's step; -1: all of the wave
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

}  // namespace sluice::engine
