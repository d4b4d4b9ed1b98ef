#include "engine/runtime/step_engine.h"

#include <utility>

#include "aio/clock.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

using offload::StepOp;
using offload::StepOperation;
using offload::StepProgram;

StepEngine::StepEngine(Resources& parts, int prefetch_units)
    : parts_(parts), prefetch_units_(prefetch_units), fetched_(parts.parameters().units()) {}

std::vector<int> StepEngine::wanted(const StepProgram& program) const {
  const UnitParameters& units = parts_.parameters().units();
  return offload::host_order(program, /*updates_too=*/false, [&](int unit, auto direction) {
    return units.keeps(unit, direction);
  });
}

void StepEngine::expect(const StepProgram& program, bool updates_run, std::span<const int> then) {
  UnitParameters& units = parts_.parameters().units();
  std::vector<int> order = offload::host_order(
      program, updates_run, [&](int unit, auto direction) { return units.keeps(unit, direction); });
  order.insert(order.end(), then.begin(), then.end());
  expect_on_host(parts_.parameters().trained(), order);
  // Updates never ask for frozen parameters, so their order is that of the passes alone.
  std::vector<int> passes = wanted(program);
  passes.insert(passes.end(), then.begin(), then.end());
  units.expect_base(passes);
}

// Leaves no unit acquired, however it ends. A GPU that has failed fails again when units are
// released; that second error is dropped.
void StepEngine::run(const StepProgram& program, Passes& passes, std::size_t first,
                     std::size_t end) {
  try {
    for (std::size_t position = first; position < end; ++position)
      execute(program, position, passes);
  } catch (...) {
    fetched_.abandon();
    throw;
  }
}

void StepEngine::execute(const StepProgram& program, std::size_t position, Passes& passes) {
  const StepOperation& operation = program[position];
  const int unit = operation.unit;
  if (position == 0 || operation.wave != program[position - 1].wave)
    passes.begin_wave(operation.wave);
  switch (operation.op) {
    case StepOp::kAwaitUpdates:  // StepUpdate has done it
      break;
    case StepOp::kAwaitUpdate:
      waited_ns_ += value_or_throw(await_update(unit));
      break;
    case StepOp::kFetch:
    case StepOp::kFetchAgain:
      passes.begin_phase(PassPhase::kAwaitParams, unit);
      note_gather(unit);
      fetched_.acquire(unit);
      break;
    case StepOp::kForward:
    case StepOp::kHead:
    case StepOp::kBackward:
      compute(operation, passes);
      if (operation.op != StepOp::kForward) break;
      passes.end_phase();
      prefetch_after(program, position);
      break;
    case StepOp::kFetchSum:  // open_gradient() waits for it
      throw_if_error(parts_.gradients().prefetch(unit));
      break;
    case StepOp::kKeepSum:
    case StepOp::kSendGradient: {
      passes.begin_phase(PassPhase::kGradient, unit);
      // Enqueued after the sum, on the ranks' single stream, a gather would delay the next
      // backward.
      const bool gathers = parts_.parameters().units().prefetch_gathers();
      if (gathers) prefetch_after(program, position);
      close_gradient(unit, operation.op == StepOp::kSendGradient);
      passes.end_phase();
      if (!gathers) prefetch_after(program, position);
      prefetch_sums(program, position);
      break;
    }
    case StepOp::kReadState:
      throw_if_error(parts_.optimizer().prefetch());
      break;
    case StepOp::kNorm:
      passes.end_waves();
      sum_gradients();
      break;
    case StepOp::kUpdate:  // by StepUpdate, which needs the totals first
      break;
  }
}

// Computes with the parameters fetched for the operation. The first unit's backward needs none.
void StepEngine::compute(const StepOperation& operation, Passes& passes) {
  const bool reads = operation.op != StepOp::kBackward || operation.unit > 0;
  const UnitViews views = reads ? fetched_.views(parts_.model(), operation.unit) : UnitViews();
  if (operation.op == StepOp::kForward)
    passes.forward(operation.unit, views);
  else if (operation.op == StepOp::kHead)
    passes.head(operation.unit, views);
  else
    passes.backward(operation.unit, views);
  fetched_.release();
}

// Prefetches the program's next units. In forward it stops at the first unit that the previous step
// has not updated yet.
void StepEngine::prefetch_after(const StepProgram& program, std::size_t position) {
  UnitParameters& units = parts_.parameters().units();
  const StepOperation& done = program[position];
  const bool before_updates = done.wave == 0 && done.op == StepOp::kForward;
  const StepOp wanted = before_updates ? StepOp::kFetch : StepOp::kFetchAgain;
  const bool gathers = units.prefetch_gathers();
  int left = prefetch_units_;
  for (std::size_t next = position + 1; next < program.size() && left > 0; ++next) {
    const StepOperation& it = program[next];
    if (it.op == StepOp::kReadState) return;
    if (it.op != wanted) continue;
    if (gathers && before_updates) {
      // Ranks must not decide this independently, so all of them wait, for the next update only.
      waited_ns_ += value_or_throw(await_update(it.unit));
      left = 1;
    }
    if (before_updates && !is_ready(it.unit)) return;
    if (gathers) note_gather(it.unit);
    throw_if_error(units.prefetch(it.unit));
    --left;
  }
}

// Prefetches the sums of earlier waves for the units whose gradients come next.
void StepEngine::prefetch_sums(const StepProgram& program, std::size_t position) {
  int left = GradientSink::kSumsAhead;
  for (std::size_t next = position + 1; next < program.size() && left > 0; ++next) {
    const StepOperation& it = program[next];
    const bool begins_a_sum =
        it.wave == 0 && (it.op == StepOp::kHead || it.op == StepOp::kBackward);
    if (begins_a_sum) return;  // its sum needs a place before any prefetched sum
    if (it.op != StepOp::kFetchSum) continue;
    throw_if_error(parts_.gradients().prefetch(it.unit));
    --left;
  }
}

// ---- single operations

bool StepEngine::is_ready(int unit) const {
  return !parts_.trains() || parts_.optimizer().is_ready(unit);
}

Result<std::int64_t> StepEngine::await_update(int unit) {
  if (!parts_.trains()) return 0;
  if (is_ready(unit)) {
    SLUICE_RETURN_IF_ERROR(parts_.optimizer().wait_ready(unit));
    return 0;
  }
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  SLUICE_RETURN_IF_ERROR(parts_.optimizer().wait_ready(unit));
  const std::int64_t end_ns = clock.now_ns();
  parts_.trace().add({.track = TraceTrack::kWaits,
                      .name = parts_.model().layout(unit).name.c_str(),
                      .begin_ns = begin_ns,
                      .end_ns = end_ns,
                      .phase = "await update"});
  return end_ns - begin_ns;
}

std::int64_t StepEngine::take_waited_ns() { return std::exchange(waited_ns_, 0); }

Result<const UnitViews*> StepEngine::acquire(int unit) {
  SLUICE_RETURN_IF_ERROR(await_update(unit).status());
  note_gather(unit);
  return parts_.parameters().units().acquire(unit);
}

void StepEngine::prefetch(int unit) {
  UnitParameters& units = parts_.parameters().units();
  if (units.prefetch_gathers()) {
    throw_if_error(await_update(unit));  // ranks must not decide this independently
    note_gather(unit);
  } else if (!is_ready(unit)) {
    return;
  }
  throw_if_error(units.prefetch(unit));
}

void StepEngine::open_gradient(int unit) {
  throw_if_error(parts_.gradients().open(unit));
  open_unit_ = unit;
}

void StepEngine::keep_sum(int unit) {
  open_unit_ = -1;
  throw_if_error(parts_.gradients().keep(unit));
}

void StepEngine::send_gradient(int unit) {
  open_unit_ = -1;
  throw_if_error(parts_.gradients().finish(unit));
}

const GradientTotals& StepEngine::sum_gradients() {
  totals_ = value_or_throw(parts_.gradients().totals());
  return totals_;
}

void StepEngine::note_gather(int unit) {
  constexpr std::uint64_t kPrime = 1099511628211U;  // FNV-1a
  order_ = (order_ ^ static_cast<std::uint64_t>(unit + 1)) * kPrime;
}

}  // namespace sluice::engine
