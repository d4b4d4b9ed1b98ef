#include "offload/planner/step_params.h"

#include <algorithm>

#include "aio/check.h"

namespace sluice::offload {
namespace {

bool contains(const std::vector<int>& units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

}  // namespace

StepParams::StepParams(const StepInputs& inputs, StepTasks& tasks, StepLink& link)
    : inputs_(inputs),
      tasks_(tasks),
      link_(link),
      slots_(static_cast<std::size_t>(std::max(inputs.options.slots(), 1))) {}

void StepParams::begin_step() {
  for (Slot& slot : slots_) slot.unit = -1;
}

TaskId StepParams::read(int unit) {
  const auto buffers = static_cast<std::size_t>(std::max(inputs_.options.param_cache_units, 1));
  const std::size_t oldest = cache_.size() - std::min(cache_.size(), buffers);
  for (std::size_t use = oldest; use < cache_.size(); ++use)
    if (cache_[use].unit == unit) return kNoTask;
  const CacheUse before = cache_.size() >= buffers ? cache_[oldest] : CacheUse{};
  const TaskId read = tasks_.add(StepTask::kParamRead, unit, inputs_.param_bytes(unit),
                                 {before.to_gpu, before.written, kNoTask, kNoTask});
  cache_.push_back({.unit = unit});
  return read;
}

void StepParams::write(int unit, TaskId done) {
  last_use(unit).written = tasks_.add(StepTask::kParamWrite, unit, inputs_.param_bytes(unit),
                                      {done, kNoTask, kNoTask, kNoTask});
}

StepParams::CacheUse& StepParams::last_use(int unit) {
  const auto use = std::find_if(cache_.rbegin(), cache_.rend(),
                                [unit](const CacheUse& it) { return it.unit == unit; });
  SLUICE_CHECK(use != cache_.rend(), "a unit that was brought into host memory");
  return *use;
}

TaskId StepParams::bring(int unit, TaskId gate, std::vector<int>& in_use) {
  in_use.push_back(unit);
  if (link_.is_used() && !inputs_.unit(unit).is_frozen()) return gather(unit, gate, in_use);
  const TaskId brought =
      gathers_frozen(unit) ? gather(unit, gate, in_use) : copy_in(unit, gate, in_use);
  if (!link_.blocks()) return brought;
  const TaskId gathered = link_.gather(unit, gate, brought);  // the trained part
  return gathered == kNoTask ? brought : gathered;
}

bool StepParams::gathers_frozen(int unit) const {
  return inputs_.unit(unit).gathered_frozen_bytes > 0 && !inputs_.place(unit).resident;
}

TaskId StepParams::copy_in(int unit, TaskId gate, const std::vector<int>& in_use) {
  if (inputs_.place(unit).resident) return kNoTask;
  const auto there = std::find_if(slots_.begin(), slots_.end(),
                                  [unit](const Slot& slot) { return slot.unit == unit; });
  if (there != slots_.end()) return kNoTask;
  const bool on_nvme = inputs_.place(unit).params_on_nvme;
  const TaskId in_host_memory = on_nvme ? read(unit) : kNoTask;
  Slot& slot = slot_for(in_use, kBlocks);
  const double bytes = inputs_.has_bus() ? inputs_.param_bytes(unit) : 0;
  const TaskId copied =
      tasks_.add(StepTask::kParamsIn, unit, bytes, {gate, slot.used, in_host_memory, kNoTask});
  slot.unit = unit;
  if (on_nvme) last_use(unit).to_gpu = copied;
  return copied;
}

// A resident unit has its own slot. The embedding also has one, which it shares with the head
// unless the head borrows. The blocks share the others.
int StepParams::turns_of(int unit) const {
  const int head = inputs_.count() - 1;
  if (inputs_.place(unit).resident || unit == 0) return unit;
  if (unit < head) return kBlocks;
  return inputs_.unit(head).lenders.empty() && !inputs_.place(0).resident ? 0 : head;
}

// If the host computes, nothing stays gathered: each pass gathers again.
TaskId StepParams::gather(int unit, TaskId gate, const std::vector<int>& in_use) {
  const bool stays = link_.is_beside_compute();
  const auto there = std::find_if(slots_.begin(), slots_.end(),
                                  [unit](const Slot& slot) { return slot.unit == unit; });
  if (stays && there != slots_.end()) {
    there->last_use = ++uses_;
    return there->gathered;
  }
  const bool frozen = inputs_.unit(unit).is_frozen();
  const auto all = [&](TaskId ready, TaskId free) {
    return frozen ? link_.gather_frozen(unit, ready, free) : link_.gather(unit, ready, free);
  };
  const double bytes = frozen ? inputs_.param_bytes(unit)
                              : inputs_.host_elements(unit) * inputs_.options.bytes.param;
  const bool on_nvme = inputs_.place(unit).params_on_nvme && bytes > 0;
  const TaskId in_host_memory = on_nvme ? read(unit) : kNoTask;
  TaskId ready = in_host_memory == kNoTask ? gate : in_host_memory;
  if (!stays) {
    const TaskId gathered = all(ready, gate);
    if (on_nvme) last_use(unit).to_gpu = gathered;
    return gathered;
  }
  Slot& slot = slot_for(in_use, turns_of(unit));
  if (bytes > 0) {
    ready =
        tasks_.add(StepTask::kParamsIn, unit, bytes, {gate, slot.used, in_host_memory, kNoTask});
    if (on_nvme) last_use(unit).to_gpu = ready;
  }
  slot.gathered = all(ready, slot.used);
  slot.unit = unit;
  slot.last_use = ++uses_;
  return slot.gathered;
}

void StepParams::prefetch(int unit, TaskId gate) {
  if (!inputs_.unit(unit).is_frozen() || gathers_frozen(unit)) gather(unit, gate, {});
}

StepParams::Slot& StepParams::slot_for(const std::vector<int>& in_use, int of) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.of != of || (slot.unit >= 0 && contains(in_use, slot.unit))) continue;
    if (best == nullptr || slot.last_use < best->last_use) best = &slot;
  }
  if (best != nullptr) return *best;
  slots_.push_back({.of = of});  // the head uses two units at once
  return slots_.back();
}

TaskId StepParams::refresh(int unit, TaskId gate, TaskId brought) {
  const bool frozen = inputs_.unit(unit).is_frozen();
  if (link_.is_used() && !frozen) return brought;  // the gather has brought them
  const UnitPlacement& place = inputs_.place(unit);
  const double elements = inputs_.host_elements(unit);
  if (link_.is_beside_compute()) {
    const TaskId ready =
        elements > 0 ? tasks_.add(StepTask::kParamsIn, unit, elements * inputs_.options.bytes.param,
                                  {gate, kNoTask, kNoTask, kNoTask})
                     : gate;
    const TaskId gathered = link_.gather(unit, ready, brought);
    return gathered == kNoTask ? brought : gathered;
  }
  if (!(place.resident || frozen) || elements == 0 || !inputs_.has_bus()) return brought;
  const bool on_nvme = place.params_on_nvme && !frozen;
  const TaskId in_host_memory = on_nvme ? read(unit) : kNoTask;
  const TaskId copied =
      tasks_.add(StepTask::kParamsIn, unit, elements * inputs_.options.bytes.param,
                 {gate, in_host_memory, brought, kNoTask});
  if (on_nvme) last_use(unit).to_gpu = copied;
  return copied;
}

void StepParams::used(const std::vector<int>& in_use, TaskId by) {
  for (Slot& slot : slots_) {
    if (slot.unit < 0 || !contains(in_use, slot.unit)) continue;
    slot.used = by;
    slot.last_use = ++uses_;
  }
}

}  // namespace sluice::offload
