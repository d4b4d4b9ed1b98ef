// ModuleRun: what the passes of a family's model need of it (family_pass.h).
#include <utility>

#include "engine/python/module_run.h"

namespace sluice::engine {

GradientSink::Target ModuleRun::open_gradient(int unit) {
  TORCH_CHECK_VALUE(!is_complete(), "the step has all of its ", micro_batches(), " micro-batches");
  if (at(unit).ended)
    throw TrainError("the gradient of unit " + layout_.described(unit).name +
                     " is complete in this micro-batch");
  is_touched_ = true;
  // Its last gradient may still be needed.
  if (micro_batch_ == 0) must(parts_->optimizer().wait_ready(unit));
  must(parts_->gradients().open(unit));
  open_unit_ = unit;
  if (at(unit).begun) return {.sums = parts_->gradients().target_again(unit, micro_batch_)};
  if (has_several_passes_) {
    at(unit).begun = true;
    at(unit).summed.assign(model().layout(unit).parameters.size(), true);
  }
  return parts_->gradients().target(unit, micro_batch_);
}

void ModuleRun::expect_several_passes() {
  TORCH_CHECK_VALUE(plan_.sums.kept > 0 && !is_touched_,
                    "sums are kept within a micro-batch where the plan has room for them");
  has_several_passes_ = true;
}

void ModuleRun::close_gradient() {
  const int unit = std::exchange(open_unit_, -1);
  if (has_several_passes_) {
    must(parts_->gradients().keep(unit));
    return;
  }
  at(unit).ended = true;
  parts_->gradients().added(unit, micro_batch_);
  must(in_last_micro_batch() ? parts_->gradients().finish(unit) : parts_->gradients().keep(unit));
}

void ModuleRun::prefetch_gradient(int unit) {
  if (micro_batch_ > 0) must(parts_->gradients().prefetch(unit));
}

// Closes an open unit whose gradient counts for nothing.
void ModuleRun::put_away(int unit) {
  must(plan_.sums.kept > 0 ? parts_->gradients().keep(unit) : parts_->gradients().finish(unit));
}

// The ends of a model may have one slot between them.
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
