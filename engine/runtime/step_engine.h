// StepEngine: carries out the operations of a program (offload/step_program.h) on the parts of a
// run. It follows the program to fetch and release parameters, wait for updates, move sums of
// gradients, and prefetch. No other code does this. The driver does the computing: it gets each
// computing operation, with its parameters.
//
//   engine.expect(program, ...);
//   engine.run(program, passes);       whole, or a part of it: autograd may come in between
//   engine.totals();                   after a program that ends with kNorm
//
// Threads: one at a time.
// Errors:  thrown: LibTorch's or TrainError; afterwards no unit is acquired.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "engine/device/phase_clock.h"
#include "engine/model/unit_views.h"
#include "engine/observe/pass_span.h"
#include "engine/runtime/resources.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/unit_parameters.h"
#include "offload/step_program.h"

namespace sluice::engine {

// The computation of a driver, called in the order of its program.
class Passes {
 public:
  virtual ~Passes() = default;
  virtual void begin_wave(int /*wave*/) {}
  virtual void forward(int unit, const UnitViews& parameters) = 0;
  virtual void head(int unit, const UnitViews& parameters) = 0;
  virtual void backward(int /*unit*/, const UnitViews& /*parameters*/) {}
  // The last pass of a step is enqueued.
  virtual void end_waves() {}
  // The host has reached this phase of a unit, or, at end_phase(), has left it.
  virtual void begin_phase(PassPhase /*phase*/, int /*unit*/) {}
  virtual void end_phase() {}

 protected:
  Passes() = default;
  Passes(const Passes&) = default;
  Passes& operator=(const Passes&) = default;
};

class StepEngine {
 public:
  // The parts must outlive it. `prefetch_units`: how many units to prefetch.
  StepEngine(Resources& parts, int prefetch_units);
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  // Hint: the order in which the host's parameters will be needed, by the program, and after it by
  // `then`. It leaves out units that the device keeps. `updates_run`: the previous step's updates
  // run while the program does.
  void expect(const offload::StepProgram& program, bool updates_run, std::span<const int> then);
  // The units that a program asks the host for, without updates.
  std::vector<int> wanted(const offload::StepProgram& program) const;

  void run(const offload::StepProgram& program, Passes& passes) {
    run(program, passes, 0, program.size());
  }
  // Runs operations [first, end).
  void run(const offload::StepProgram& program, Passes& passes, std::size_t first, std::size_t end);
  // Totals of the last step whose gradients were summed.
  const GradientTotals& totals() const { return totals_; }

  // ---- single operations, for drivers that work unit by unit
  // Returns the time waited, in ns.
  Result<std::int64_t> await_update(int unit);
  // Returns the unit's parameters. Holds one unit at a time, unless a program fetches several.
  Result<const UnitViews*> acquire(int unit);
  void release(int unit) { parts_.parameters().units().release(unit); }
  // Does nothing if the unit's update is not done yet. With one rank it never waits.
  void prefetch(int unit);
  // Opens the unit whose gradient is added to next; one at a time.
  void open_gradient(int unit);
  // The unit whose sum is neither kept nor sent yet; -1: none.
  int open_unit() const { return open_unit_; }
  int take_open_unit() { return std::exchange(open_unit_, -1); }
  void keep_sum(int unit);
  void send_gradient(int unit);
  void close_gradient(int unit, bool sends) { sends ? send_gradient(unit) : keep_sum(unit); }
  // Waits until all gradients are where the optimizer reads them. Collective.
  const GradientTotals& sum_gradients();

  // The time programs have waited for updates since the last call.
  std::int64_t take_waited_ns();
  // A hash of the units gathered so far, in order: equal on all ranks.
  std::uint64_t order() const { return order_; }

 private:
  void execute(const offload::StepProgram& program, std::size_t position, Passes& passes);
  void compute(const offload::StepOperation& operation, Passes& passes);
  void prefetch_after(const offload::StepProgram& program, std::size_t position);
  void prefetch_sums(const offload::StepProgram& program, std::size_t position);
  void note_gather(int unit);
  bool is_ready(int unit) const;

  Resources& parts_;
  const int prefetch_units_;
  FetchedUnits fetched_;
  GradientTotals totals_;
  int open_unit_ = -1;
  std::int64_t waited_ns_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace sluice::engine
