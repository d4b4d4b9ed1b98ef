#include "offload/planner/step_transfers.h"

#include <algorithm>
#include <cstddef>

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
  const bool stays = link_.overlaps_compute();
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
  if (link_.overlaps_compute()) {
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

StepGradients::StepGradients(const StepInputs& inputs, StepTasks& tasks)
    : inputs_(inputs), tasks_(tasks), written_(inputs.units.size(), kNoTask) {}

// A buffer is read and written as a whole. It holds fp32 sums, or from a GPU the gradient if that
// is larger than the sums that a wave leaves.
double StepGradients::bytes(int unit) const {
  const StepModelOptions& options = inputs_.options;
  const double sum = inputs_.whole_elements(unit) * options.bytes.sum;
  if (!inputs_.has_bus()) return sum;
  return std::max(static_cast<double>(inputs_.unit(unit).elements) * options.bytes.grad,
                  options.kept_sums * sum);
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
  buffer_of(unit).is_read = false;
}

TaskId StepGradients::bring(int unit, TaskId before) {
  const Taken taken = take(unit);
  if (taken.is_there) return before;
  buffer_of(unit).is_read = true;
  return tasks_.add(StepTask::kGradientRead, unit, bytes(unit),
                    {before, written(unit), taken.free, kNoTask});
}

// A buffer that was not read may still be being written.
void StepGradients::used(int unit, TaskId done) {
  Buffer& buffer = buffer_of(unit);
  buffer.freed = buffer.is_read ? done
                                : tasks_.add(StepTask::kNorm, unit, 0,
                                             {written(unit), done, kNoTask, kNoTask});
}

StepRecords::StepRecords(const StepInputs& inputs, StepTasks& tasks)
    : inputs_(inputs), tasks_(tasks) {
  const std::uint64_t most = std::max<std::uint64_t>(inputs.options.record_elements, 1);
  for (int index = 0; index < inputs.count(); ++index) {
    first_record_.push_back(records_.size());
    for (std::uint64_t left = inputs.place(index).nvme_elements; left > 0;) {
      const std::uint64_t elements = std::min(left, most);
      records_.push_back({index, static_cast<double>(elements)});
      left -= elements;
    }
  }
  first_record_.push_back(records_.size());
  buffers_ = std::max<std::size_t>(2, inputs.options.swap_buffer_elements / most);
}

// With outside tasks, buffers are managed elsewhere.
void StepRecords::read_ahead(TaskId head) {
  head_ = head;
  const std::size_t most =
      tasks_.drives_outside() ? records_.size() : std::min(records_.size(), buffers_);
  for (std::size_t record = 0; record < most; ++record) add_read(record);
}

void StepRecords::add_update(int unit, TaskId norm, TaskId params) {
  const auto index = static_cast<std::size_t>(unit);
  for (std::size_t record = first_record_[index]; record < first_record_[index + 1]; ++record) {
    if (reads_.size() == writes_.size()) add_read(record);
    const double elements = records_[record].elements;
    const TaskId read = reads_[writes_.size()];
    const TaskId computed =
        tasks_.add(StepTask::kCpuAdamw, unit, elements, {norm, read, params, kNoTask});
    record_tasks_.push_back({record, read, computed});
    const double bytes = elements * inputs_.options.bytes.nvme_write;
    if (tasks_.drives_outside()) {
      tasks_.count(Resource::kDriveWrite, bytes);
      writes_.push_back(computed);
    } else {
      writes_.push_back(
          tasks_.add(StepTask::kStateWrite, unit, bytes, {computed, kNoTask, kNoTask, kNoTask}));
    }
  }
}

// A record's buffer is free for another record once it has been written.
void StepRecords::add_read(std::size_t record) {
  const bool is_full = !tasks_.drives_outside() && reads_.size() >= buffers_;
  const TaskId buffer = is_full ? writes_[reads_.size() - buffers_] : kNoTask;
  reads_.push_back(tasks_.add(StepTask::kStateRead, records_[record].unit,
                              records_[record].elements * inputs_.options.bytes.nvme_read,
                              {head_, buffer, kNoTask, kNoTask}));
}

}  // namespace sluice::offload
