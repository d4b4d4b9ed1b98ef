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
  // What no update changes is asked for by passes alone.
  std::vector<int> passes = wanted(program);
  passes.insert(passes.end(), then.begin(), then.end());
  units.expect_base(passes);
}

// However it ends, no unit is left acquired. Where a GPU has failed, it fails again as units are
// released: after another exception that is not reported.
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
    case StepOp::kAwaitUpdates:  // StepUpdate has
      break;
    case StepOp::kAwaitUpdate:
      waited_ns_ += must(await_update(unit));
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
      must(parts_.gradients().prefetch(unit));
      break;
    case StepOp::kKeepSum:
    case StepOp::kSendGradient: {
      passes.begin_phase(PassPhase::kGradient, unit);
      // After the sum, on the ranks' one stream, it would keep the next backward waiting.
      const bool gathers = parts_.parameters().units().prefetch_gathers();
      if (gathers) prefetch_after(program, position);
      close_gradient(unit, operation.op == StepOp::kSendGradient);
      passes.end_phase();
      if (!gathers) prefetch_after(program, position);
      prefetch_sums(program, position);
      break;
    }
    case StepOp::kReadState:
      must(parts_.optimizer().prefetch());
      break;
    case StepOp::kNorm:
      passes.end_waves();
      sum_gradients();
      break;
    case StepOp::kUpdate:  // StepUpdate's, which sees the totals first
      break;
  }
}

// With the parameters that were fetched for it. The first unit's backward computes with none.
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

// What the program fetches next; in forward only as far as the updates of the previous step have
// come.
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
      // Whether an update is done is not for each rank to find: all wait, for the next one alone.
      waited_ns_ += must(await_update(it.unit));
      left = 1;
    }
    if (before_updates && !is_ready(it.unit)) return;
    if (gathers) note_gather(it.unit);
    must(units.prefetch(it.unit));
    --left;
  }
}

// What earlier waves have added up for the units whose gradients come next.
void StepEngine::prefetch_sums(const StepProgram& program, std::size_t position) {
  int left = GradientSink::kSumsAhead;
  for (std::size_t next = position + 1; next < program.size() && left > 0; ++next) {
    const StepOperation& it = program[next];
    const bool begins_a_sum =
        it.wave == 0 && (it.op == StepOp::kHead || it.op == StepOp::kBackward);
    if (begins_a_sum) return;  // it needs a place before any that is fetched
    if (it.op != StepOp::kFetchSum) continue;
    must(parts_.gradients().prefetch(it.unit));
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
    must(await_update(unit));  // whether it is done is not for each rank to find
    note_gather(unit);
  } else if (!is_ready(unit)) {
    return;
  }
  must(units.prefetch(unit));
}

void StepEngine::open_gradient(int unit) {
  must(parts_.gradients().open(unit));
  open_unit_ = unit;
}

void StepEngine::keep_sum(int unit) {
  open_unit_ = -1;
  must(parts_.gradients().keep(unit));
}

void StepEngine::send_gradient(int unit) {
  open_unit_ = -1;
  must(parts_.gradients().finish(unit));
}

const GradientTotals& StepEngine::sum_gradients() {
  totals_ = must(parts_.gradients().totals());
  return totals_;
}

void StepEngine::note_gather(int unit) {
  constexpr std::uint64_t kPrime = 1099511628211U;  // FNV-1a's
  order_ = (order_ ^ static_cast<std::uint64_t>(unit + 1)) * kPrime;
}

}  // namespace sluice::engine
