#include "engine/train/skipped_steps.h"

#include <sstream>

namespace sluice::engine {

Status SkippedSteps::after_step(bool skipped) {
  ++taken_;
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  if (static_scale_ == 0 || in_a_row_ < kMostInARow) return {};
  std::ostringstream text;
  text << "the last " << in_a_row_ << " steps overflowed at the fixed loss scale of "
       << static_scale_
       << " and were skipped, so nothing is being learned: set fp16.loss_scale to 0, which adapts "
          "it, or to less, or train in bf16";
  return Error(ErrorCode::kInvalidArgument, text.str());
}

}  // namespace sluice::engine
