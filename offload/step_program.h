// StepProgram: the order of a training step, and of the passes that only compute forward, as a flat
// list of operations. It is written only here: the trainer carries it out, the planner's step model
// and the simulation derive tasks and times from it, and it shows what will be fetched.
//
// A unit's parameters are fetched before an operation that computes and may be given up after it;
// micro-batches are inside an operation. The first unit's backward computes with none: what it was
// given are token ids.
//
// A step is one or more waves: consecutive micro-batches that go through the model together, so
// that what is kept between forward and backward is that of a wave, however large the step. From
// one wave to the next each unit's sum of gradients is kept.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace sluice::offload {

enum class StepOp : std::uint8_t {
  kAwaitUpdates,  // the host's updates of the previous step are done, for all units
  kAwaitUpdate,   // the update of the previous step has reached the unit
  kFetch,         // the unit's parameters, to where they are used
  kFetchAgain,    // likewise, of a unit that was fetched before in this program
  kForward,       // of a unit but the last; where there is a backward, its input is kept
  kHead,          // of the last unit; where there is a backward, loss and gradient at once
  kReadState,     // optimizer state begins to come from NVMe
  kFetchSum,      // what earlier waves added up of the unit's gradient
  kBackward,      // of a unit but the last
  kKeepSum,       // of the unit's gradient, for the next wave
  kSendGradient,  // the unit's gradient is complete: to where the optimizer wants it
  kNorm,          // all gradients are where they belong
  kUpdate,        // of all units, in forward order
};

struct StepOperation {
  StepOp op = StepOp::kNorm;
  int unit = 0;
  int wave = 0;
  friend bool operator==(const StepOperation&, const StepOperation&) = default;
};
using StepProgram = std::vector<StepOperation>;

struct ProgramUnits {
  int count = 0;
  // Earlier units whose parameters a unit computes with besides its own.
  std::function<const std::vector<int>&(int unit)> lenders;
};

// The micro-batches of a step, cut into waves of at most so many: all but the last have just these.
struct Waves {
  std::int64_t micro_batches = 1;  // of a step
  std::int64_t of_a_wave = 1;      // at most micro_batches

  int count() const { return static_cast<int>((micro_batches + of_a_wave - 1) / of_a_wave); }
  std::int64_t first(int wave) const { return wave * of_a_wave; }
  std::int64_t size(int wave) const { return std::min(of_a_wave, micro_batches - first(wave)); }
};

// `overlap_update`: a unit's update need not be done before its own forward in the first wave; else
// all are done before the first.
StepProgram training_step(const ProgramUnits& units, bool overlap_update, int waves = 1);
// One forward pass: evaluation, generation.
StepProgram forward_pass(const ProgramUnits& units);
// The last unit once more, whose input is still there.
StepProgram head_pass(const ProgramUnits& units);

// A micro-batch of a step whose forward and backward are asked for one by one: a wave, whose number
// is its own. The head comes twice, for the loss and for its gradient.
struct MicroBatch {
  int number = 0;            // in the step
  bool has_backward = true;  // else its loss is all that is wanted
  bool reads_state = false;  // it is the step's last
  bool sends = false;        // likewise, and nothing else is added to it
};
struct SplitProgram {
  StepProgram program;
  std::size_t backward = 0;  // where it begins
};
SplitProgram micro_batch_passes(const ProgramUnits& units, const MicroBatch& micro_batch);

// Which way the units are passed: whose parameters are still there depends on who came last.
enum class PassDirection : std::uint8_t { kForward, kBackward };
// Whether a unit's parameters are still there when a pass in this direction fetches them again.
using KeepsUnit = std::function<bool(int unit, PassDirection direction)>;

// The units whose parameters a program asks the host for, in this order: what is fetched, except
// what is still there when it is fetched again. In a step whose update runs beside it
// (`updates_too`), the update asks for each unit first.
std::vector<int> host_order(const StepProgram& program, bool updates_too, const KeepsUnit& keeps);
// Units in the order of their updates.
std::vector<int> update_order(const StepProgram& program);

}  // namespace sluice::offload
