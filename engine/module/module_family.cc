// ModuleRun: the functions that FamilyPass needs (family_pass.h).
#include <numeric>

#include "engine/module/module_run.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

offload::SplitProgram ModuleRun::passes(bool has_backward) const {
  return offload::micro_batch_passes(program_units(model()),
                                     {.number = static_cast<int>(micro_batch_),
                                      .has_backward = has_backward,
                                      .reads_state = in_last_micro_batch(),
                                      .sends = in_last_micro_batch() && !has_several_passes_});
}

void ModuleRun::expect_passes(const offload::SplitProgram& passes, bool has_backward) {
  std::vector<int> updates;
  if (has_backward && in_last_micro_batch()) {
    updates.resize(static_cast<std::size_t>(model().units()));
    std::iota(updates.begin(), updates.end(), 0);
  }
  engine_->expect(passes.program, micro_batch_ == 0 && train_state().applied_step > 0, updates);
}

void ModuleRun::release_all() {
  for (int unit = 0; unit < layout_.units(); ++unit) release(unit);
}

GradientSink::Target ModuleRun::open_gradient(int unit) {
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
  if (at(unit).ended)
    throw TrainError("the gradient of unit " + layout_.described(unit).name +
                     " is complete in this micro-batch");
  is_touched_ = true;
  // The unit's update may still read the last step's gradient.
  if (micro_batch_ == 0) throw_if_error(engine_->await_update(unit));
  engine_->open_gradient(unit);
  if (at(unit).begun) return {.sums = parts_->gradients().target_again(unit, micro_batch_)};
  if (has_several_passes_) {
    at(unit).begun = true;
    at(unit).summed.assign(model().layout(unit).parameters.size(), true);
  }
  return parts_->gradients().target(unit, micro_batch_);
}

void ModuleRun::added_gradient(int unit) {
  if (has_several_passes_) return;
  at(unit).ended = true;
  parts_->gradients().added(unit, micro_batch_);
}

void ModuleRun::expect_several_passes() {
  TORCH_CHECK_VALUE(plan_.sums.kept > 0 && !is_touched_,
                    "sums are kept within a micro-batch where the plan has room for them");
  has_several_passes_ = true;
}

// Closes an open unit and discards its gradient.
void ModuleRun::put_away(int unit) {
  engine_->close_gradient(unit, /*sends=*/plan_.sums.kept == 0);
}

// The embedding and the head may share one slot.
void ModuleRun::check_ends(int unit) const {
  const int head = model().head();
  if (!layout_.is_family() || !plan_.cuda || (unit != 0 && unit != head)) return;
  const int other = unit == 0 ? head : 0;
  const bool take_turns = slot_options(plan_).ends_take_turns && model().borrowed(head).empty() &&
                          !plan_.state.residency.resident(unit) &&
                          !plan_.state.residency.resident(other);
  if (take_turns && at(other).acquired)
    throw TrainError("units " + layout_.described(unit).name + " and " +
                     layout_.described(other).name +
                     " take turns in one place on the GPU: they cannot be gathered together");
}

}  // namespace sluice::engine
