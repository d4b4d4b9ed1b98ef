#include "offload/fluid_schedule.h"

#include <algorithm>
#include <limits>

#include "aio/check.h"

namespace sluice::offload {
namespace {

constexpr std::size_t at(Resource resource) { return static_cast<std::size_t>(resource); }
constexpr bool is_active(ResourceRates::Mask mask, Resource resource) {
  return ((mask >> at(resource)) & 1U) != 0;
}

// Each direction, where the two are active or not.
void set_duplex(const DuplexRates& duplex, Resource in, Resource out, ResourceRates::Mask active,
                ResourceRates::Rates& rates) {
  const bool both = is_active(active, in) && is_active(active, out);
  const auto rate = [both](double alone, double together) {
    return both && together > 0 ? std::min(together, alone) : alone;
  };
  rates[at(in)] = rate(duplex.in_bytes_per_s, duplex.in_both_bytes_per_s);
  rates[at(out)] = rate(duplex.out_bytes_per_s, duplex.out_both_bytes_per_s);
}

// Whoever moves bytes of DRAM gives up the same share when they ask for more than it has. AdamW
// alone was measured: it has what it needs then.
void share_dram(const MachineSpeeds& speeds, double adamw_bytes, ResourceRates::Mask active,
                ResourceRates::Rates& rates) {
  const double most = speeds.host_copy_bytes_per_s;
  if (most <= 0) return;
  double asked = 0;
  for (const Resource mover :
       {Resource::kHostToGpu, Resource::kGpuToHost, Resource::kDriveRead, Resource::kDriveWrite}) {
    if (is_active(active, mover)) asked += rates[at(mover)];
  }
  if (!is_active(active, Resource::kCpu) || asked == 0) return;
  asked += std::min(rates[at(Resource::kCpu)] * adamw_bytes, most);
  if (asked <= most) return;
  for (std::size_t r = 0; r < kResources; ++r)
    if (r != at(Resource::kGpu)) rates[r] *= most / asked;
}

}  // namespace

Resource resource_of(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return Resource::kGpu;
    case Stream::kParamsIn:
    case Stream::kBoundariesIn:
      return Resource::kHostToGpu;
    case Stream::kGradientsOut:
    case Stream::kBoundariesOut:
      return Resource::kGpuToHost;
    case Stream::kStateReads:
    case Stream::kParamReads:
      return Resource::kDriveRead;
    case Stream::kStateWrites:
    case Stream::kParamWrites:
      return Resource::kDriveWrite;
    case Stream::kUpdates:
    case Stream::kHost:
      break;
  }
  return Resource::kCpu;
}

ResourceRates::ResourceRates(const MachineSpeeds& speeds, double cpu_adamw_dram_bytes) {
  for (Mask active = 0; active < table_.size(); ++active) {
    Rates& rates = table_[active];
    rates[at(Resource::kGpu)] = 1;
    rates[at(Resource::kCpu)] = speeds.cpu_adamw_elements_per_s;
    set_duplex(speeds.bus, Resource::kHostToGpu, Resource::kGpuToHost, active, rates);
    set_duplex(speeds.drives, Resource::kDriveRead, Resource::kDriveWrite, active, rates);
    share_dram(speeds, cpu_adamw_dram_bytes, active, rates);
  }
}

double ResourceRates::alone(Resource resource) const {
  return table_[1U << at(resource)][at(resource)];
}

FluidSchedule::FluidSchedule(std::size_t expected_tasks) {
  tasks_.reserve(expected_tasks);
  for (Line& line : lines_) line.tasks.reserve(expected_tasks / 4);
}

TaskId FluidSchedule::add(const Task& task) {
  const auto id = static_cast<TaskId>(tasks_.size());
  for (const TaskId before : task.after)
    SLUICE_CHECK(before < id, "a task comes after tasks that are there already");
  tasks_.push_back(task);
  lines_[static_cast<std::size_t>(task.stream)].tasks.push_back(id);
  return id;
}

bool FluidSchedule::may_begin(TaskId id) const {
  const auto& after = task(id).after;
  return std::all_of(after.begin(), after.end(),
                     [this](TaskId it) { return it == kNoTask || times(it).end_s >= 0; });
}

// Tasks without work are done at once.
bool FluidSchedule::begin_next(Line& line) {
  if (line.active || line.next == line.tasks.size()) return false;
  const TaskId id = line.tasks[line.next];
  if (!may_begin(id)) return false;
  Times& times = times_[static_cast<std::size_t>(id)];
  times.begin_s = now_s_;
  begun_[static_cast<std::size_t>(id)] = true;
  if (task(id).work > 0) {
    line.active = true;
    line.left = task(id).work;
    return true;
  }
  times.end_s = now_s_;
  ++line.next;
  return true;
}

void FluidSchedule::begin_all() {
  for (bool begun = true; begun;) {
    begun = false;
    for (Line& line : lines_)
      while (begin_next(line)) begun = true;
  }
}

// To the end of the task that ends next.
void FluidSchedule::advance(const ResourceRates& rates, bool count_busy) {
  ResourceRates::Mask active = 0;
  std::array<int, kResources> sharers{};
  for (std::size_t s = 0; s < lines_.size(); ++s) {
    if (!lines_[s].active) continue;
    const std::size_t resource = at(resource_of(static_cast<Stream>(s)));
    active |= 1U << resource;
    ++sharers[resource];
  }
  SLUICE_CHECK(active != 0, "a schedule whose tasks come after each other goes on");
  const ResourceRates::Rates& rate = rates.of(active);
  const auto share = [&](std::size_t s) {
    const std::size_t resource = at(resource_of(static_cast<Stream>(s)));
    return rate[resource] / sharers[resource];
  };
  double step_s = std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < lines_.size(); ++s)
    if (lines_[s].active) step_s = std::min(step_s, lines_[s].left / share(s));
  now_s_ += step_s;
  for (std::size_t r = 0; count_busy && r < kResources; ++r)
    if (((active >> r) & 1U) != 0) busy_s_[r] += step_s;
  constexpr double kRounding = 1 + 1e-12;
  for (std::size_t s = 0; s < lines_.size(); ++s) {
    Line& line = lines_[s];
    if (!line.active) continue;
    const double work = share(s) * step_s;
    if (line.left > work * kRounding) {
      line.left -= work;
      continue;
    }
    line.active = false;
    times_[static_cast<std::size_t>(line.tasks[line.next++])].end_s = now_s_;
  }
}

void FluidSchedule::run(const ResourceRates& rates, TaskId first, TaskId last) {
  times_.assign(tasks_.size(), {});
  begun_.assign(tasks_.size(), false);
  begin_all();
  while (times(last).end_s < 0) {
    advance(rates, first == kNoTask || times(first).end_s >= 0);
    begin_all();
  }
}

}  // namespace sluice::offload
