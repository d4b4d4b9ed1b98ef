// StepEngine: carries out the operations of a program (offload/step_program.h) on the parts of a
// run. Parameters come and go, updates are awaited, sums of gradients are fetched, kept and sent,
// and what comes next is fetched ahead, all as the program says and written here alone. What is
// computed is the driver's: it gets each operation that computes, with the parameters for it.
//
//   engine.expect(program, ...);
//   engine.run(program, passes);       whole, or a part of it: autograd may come in between
//   engine.totals();                   after a program that ends with kNorm
//
// Threads: one at a time.
// Errors:  thrown, as LibTorch's or TrainError; then no unit is left acquired.
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

// What a driver computes, in the order of its program.
class Passes {
 public:
  virtual ~Passes() = default;
  virtual void begin_wave(int /*wave*/) {}
  virtual void forward(int unit, const UnitViews& parameters) = 0;
  virtual void head(int unit, const UnitViews& parameters) = 0;
  virtual void backward(int /*unit*/, const UnitViews& /*parameters*/) {}
  // The last pass of a step is enqueued.
  virtual void end_waves() {}
  // The host comes to this phase of a unit, or to what is of none.
  virtual void begin_phase(PassPhase /*phase*/, int /*unit*/) {}
  virtual void end_phase() {}

 protected:
  Passes() = default;
  Passes(const Passes&) = default;
  Passes& operator=(const Passes&) = default;
};

class StepEngine {
 public:
  // The parts must outlive it. `prefetch_units`: how many units are fetched ahead.
  StepEngine(Resources& parts, int prefetch_units);
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  // The order in which the host's parameters will be wanted: by the program, and after it by
  // `then`. What the device keeps is not asked for again. `updates_run`: those of the previous
  // step, under the program. A hint.
  void expect(const offload::StepProgram& program, bool updates_run, std::span<const int> then);
  // What a program asks the host for, without updates.
  std::vector<int> wanted(const offload::StepProgram& program) const;

  void run(const offload::StepProgram& program, Passes& passes) {
    run(program, passes, 0, program.size());
  }
  // Operations [first, end).
  void run(const offload::StepProgram& program, Passes& passes, std::size_t first, std::size_t end);
  // Of the last step whose gradients were summed.
  const GradientTotals& totals() const { return totals_; }

  // ---- single operations, for whoever is asked unit by unit
  // How long it took, in ns.
  Result<std::int64_t> await_update(int unit);
  // The unit's parameters; unless several are fetched by a program, one at a time.
  Result<const UnitViews*> acquire(int unit);
  void release(int unit) { parts_.parameters().units().release(unit); }
  // Unless its update is not done yet. Never waits, where there is one rank.
  void prefetch(int unit);
  // Of a unit whose gradient is added to next; one at a time.
  void open_gradient(int unit);
  // Until its sum is kept or sent; -1: none is open.
  int open_unit() const { return open_unit_; }
  int take_open_unit() { return std::exchange(open_unit_, -1); }
  void keep_sum(int unit);
  void send_gradient(int unit);
  void close_gradient(int unit, bool sends) { sends ? send_gradient(unit) : keep_sum(unit); }
  // All gradients are where the optimizer wants them. On all ranks.
  const GradientTotals& sum_gradients();

  // How long programs have waited for updates, since the call before.
  std::int64_t take_waited_ns();
  // A hash of the units that were gathered, in their order: the same on all ranks.
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
