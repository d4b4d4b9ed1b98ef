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
  if (micro_batch_ == 0) must(optimizer_->wait_ready(unit));
  must(gradients_->open(unit));
  open_unit_ = unit;
  if (at(unit).begun) return {.sums = gradients_->target_again(unit, micro_batch_)};
  if (has_several_passes_) {
    at(unit).begun = true;
    at(unit).summed.assign(model().layout(unit).parameters.size(), true);
  }
  return gradients_->target(unit, micro_batch_);
}

void ModuleRun::expect_several_passes() {
  TORCH_CHECK_VALUE(plan_.sums.kept > 0 && !is_touched_,
                    "sums are kept within a micro-batch where the plan has room for them");
  has_several_passes_ = true;
}

void ModuleRun::close_gradient() {
  const int unit = std::exchange(open_unit_, -1);
  if (has_several_passes_) {
    must(gradients_->keep(unit));
    return;
  }
  at(unit).ended = true;
  gradients_->added(unit, micro_batch_);
  must(in_last_micro_batch() ? gradients_->finish(unit) : gradients_->keep(unit));
}

void ModuleRun::prefetch_gradient(int unit) {
  if (micro_batch_ > 0) must(gradients_->prefetch(unit));
}

// Closes an open unit whose gradient counts for nothing.
void ModuleRun::put_away(int unit) {
  must(plan_.sums.kept > 0 ? gradients_->keep(unit) : gradients_->finish(unit));
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
