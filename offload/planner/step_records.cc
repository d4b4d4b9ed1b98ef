#include "offload/planner/step_records.h"

#include <algorithm>

namespace sluice::offload {

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
