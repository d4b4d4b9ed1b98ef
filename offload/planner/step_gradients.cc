#include "offload/planner/step_gradients.h"

#include <algorithm>
#include <cstddef>

#include "aio/check.h"

namespace sluice::offload {

StepGradients::StepGradients(const StepInputs& inputs, StepTasks& tasks)
    : inputs_(inputs), tasks_(tasks), written_(inputs.units.size(), kNoTask) {}

// A buffer holds fp32 sums, and is read and written as a whole.
double StepGradients::bytes(int unit) const {
  return inputs_.whole_elements(unit) * inputs_.options.bytes.sum;
}

StepGradients::Taken StepGradients::take(int unit) {
  const auto has = std::find_if(buffers_.begin(), buffers_.end(),
                                [unit](const Buffer& it) { return it.unit == unit; });
  if (has != buffers_.end()) {
    std::rotate(has, has + 1, buffers_.end());
    return {.is_there = true};
  }
  Taken taken;
  if (buffers_.size() >= static_cast<std::size_t>(inputs_.options.gradient_buffers)) {
    taken.free = buffers_.front().freed;
    buffers_.erase(buffers_.begin());
  }
  buffers_.push_back({.unit = unit});
  return taken;
}

StepGradients::Buffer& StepGradients::buffer_of(int unit) {
  const auto has = std::find_if(buffers_.begin(), buffers_.end(),
                                [unit](const Buffer& it) { return it.unit == unit; });
  SLUICE_CHECK(has != buffers_.end(), "the sums of a unit that was opened");
  return *has;
}

TaskId StepGradients::open(int unit, bool is_first) {
  const Taken taken = take(unit);
  if (is_first || taken.is_there) return taken.free;
  return tasks_.add(StepTask::kGradientRead, unit, bytes(unit),
                    {written(unit), taken.free, kNoTask, kNoTask});
}

void StepGradients::close(int unit, TaskId computed) {
  const TaskId write = tasks_.add(StepTask::kGradientWrite, unit, bytes(unit),
                                  {computed, kNoTask, kNoTask, kNoTask});
  written_[static_cast<std::size_t>(unit)] = buffer_of(unit).freed = write;
}

TaskId StepGradients::bring(int unit, TaskId norm) {
  const Taken taken = take(unit);
  if (taken.is_there) return norm;
  return tasks_.add(StepTask::kGradientRead, unit, bytes(unit),
                    {norm, written(unit), taken.free, kNoTask});
}

}  // namespace sluice::offload
