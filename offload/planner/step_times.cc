// The times of a step that StepGraph has scheduled.
#include <algorithm>
#include <cstddef>

#include "offload/planner/step_graph.h"

namespace sluice::offload {

double StepGraph::begin_s(const Marks& step) const {
  return step.first == kNoTask ? 0 : tasks_.schedule().times(step.first).end_s;
}

FluidSchedule::Repeated StepGraph::repeated(const Marks& step) const {
  if (not_modelled_ == 0) return {};
  return {.from = step.backwards[kMiddleWave - 1],
          .to = step.backwards[kMiddleWave],
          .more_times = static_cast<double>(not_modelled_)};
}

double StepGraph::middle_s(const Marks& step) const {
  const FluidSchedule& schedule = tasks_.schedule();
  return schedule.times(step.backwards[kMiddleWave]).end_s -
         schedule.times(step.backwards[kMiddleWave - 1]).end_s;
}

double StepGraph::end_s(const Marks& step) const {
  const double modelled_s = tasks_.schedule().times(step.last).end_s;
  return not_modelled_ == 0 ? modelled_s : modelled_s + not_modelled_ * middle_s(step);
}

double StepGraph::forward_s(const Marks& step) const {
  const FluidSchedule& schedule = tasks_.schedule();
  double seconds = 0;
  if (not_modelled_ > 0) {
    seconds = not_modelled_ * (schedule.times(step.heads[kMiddleWave]).end_s -
                               schedule.times(step.backwards[kMiddleWave - 1]).end_s);
  }
  double begin = begin_s(step);
  for (std::size_t wave = 0; wave < step.heads.size(); ++wave) {
    seconds += schedule.times(step.heads[wave]).end_s - begin;
    begin = schedule.times(step.backwards[wave]).end_s;
  }
  return seconds;
}

double StepGraph::exposed_s(const Marks& step) const {
  const FluidSchedule& schedule = tasks_.schedule();
  double exposed = 0;
  double free_s = begin_s(step);  // when the GPU is free for the unit
  for (std::size_t unit = 0; unit < step.gates.size(); ++unit) {
    exposed += std::max(0.0, schedule.times(step.gates[unit]).end_s - free_s);
    const bool is_last = unit + 1 == step.gates.size();
    const TaskId next = is_last ? step.head + 1 : step.gpu_begins[unit + 1];
    for (TaskId id = step.gpu_begins[unit]; id < next; ++id) {
      if (schedule.task(id).stream == Stream::kCompute) free_s = schedule.times(id).end_s;
    }
  }
  return exposed;
}

}  // namespace sluice::offload
