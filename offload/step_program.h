// StepProgram: the order of a training step, and of forward-only passes, as a flat list of
// operations. The order is written only here: the trainer executes it, and the planner's step model
// and the simulation derive tasks and times from it. It also shows which units will be fetched.
//
// A unit's parameters are fetched before an operation that computes with them and may be dropped
// after it. An operation covers all micro-batches of its wave. The first unit's backward needs no
// parameters, because its input is token ids.
//
// A step is one or more waves: consecutive micro-batches that go through the model together. So
// only one wave's data is kept between forward and backward, however large the step. Each unit's
// sum of gradients is kept from one wave to the next.
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
  kAwaitUpdates,  // wait for the host's updates of the previous step, for all units
  kAwaitUpdate,   // wait until the unit has its update of the previous step
  kFetch,         // bring the unit's parameters to where they are used
  kFetchAgain,    // the same, for a unit that this program fetched before
  kForward,       // any unit but the last; with a backward, its input is kept
  kHead,          // the last unit; with a backward, loss and gradient at once
  kReadState,     // start reading optimizer state from NVMe
  kFetchSum,      // fetch the unit's gradient sum of the earlier waves
  kBackward,      // any unit but the last
  kKeepSum,       // keep the unit's gradient sum for the next wave
  kSendGradient,  // the unit's gradient is complete: send it to the optimizer
  kNorm,          // gradient norm; all gradients have reached the optimizer
  kUpdate,        // update all units, in forward order
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
  // The earlier units whose parameters a unit uses in addition to its own.
  std::function<const std::vector<int>&(int unit)> lenders;
};

// A step's micro-batches, cut into waves. All waves have `of_a_wave` micro-batches, except that the
// last may have fewer.
struct Waves {
  std::int64_t micro_batches = 1;  // in a step
  std::int64_t of_a_wave = 1;      // at most micro_batches

  int count() const { return static_cast<int>((micro_batches + of_a_wave - 1) / of_a_wave); }
  std::int64_t first(int wave) const { return wave * of_a_wave; }
  std::int64_t size(int wave) const { return std::min(of_a_wave, micro_batches - first(wave)); }
};

// `overlap_update`: a unit's update must be done only before that unit's forward in the first wave.
// Otherwise all updates must be done before the first forward.
StepProgram training_step(const ProgramUnits& units, bool overlap_update, int waves = 1);
// One forward pass: evaluation, generation.
StepProgram forward_pass(const ProgramUnits& units);
// Runs the last unit again on its input, which must still be stored.
StepProgram head_pass(const ProgramUnits& units);

// One micro-batch of a step whose forward and backward passes are requested separately: a wave of
// its own, with the micro-batch's number. The head runs twice, for the loss and for its gradient.
struct MicroBatch {
  int number = 0;            // in the step
  bool has_backward = true;  // false: only its loss is needed
  bool reads_state = false;  // true for the step's last micro-batch
  bool sends = false;        // true for the last one, if nothing else is added to the gradient
};
struct SplitProgram {
  StepProgram program;
  std::size_t backward = 0;  // where the backward part begins
};
SplitProgram micro_batch_passes(const ProgramUnits& units, const MicroBatch& micro_batch);

// The direction of a pass: which units are still stored after it depends on which came last.
enum class PassDirection : std::uint8_t { kForward, kBackward };
// Whether a unit's parameters are still stored when a pass in this direction fetches them again.
using KeepsUnit = std::function<bool(int unit, PassDirection direction)>;

// The units whose parameters a program requests from the host, in this order: each fetch, except
// repeated fetches of units that are still stored. If the step's update runs concurrently
// (`updates_too`), the update requests each unit first.
std::vector<int> host_order(const StepProgram& program, bool updates_too, const KeepsUnit& keeps);
// Units in the order of their updates.
std::vector<int> update_order(const StepProgram& program);

}  // namespace sluice::offload
