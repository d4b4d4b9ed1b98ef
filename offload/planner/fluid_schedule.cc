#include "offload/planner/fluid_schedule.h"

#include <algorithm>
#include <limits>

#include "aio/check.h"

namespace sluice::offload {
namespace {

constexpr std::size_t at(Resource resource) { return static_cast<std::size_t>(resource); }
constexpr bool is_active(ResourceRates::Mask mask, Resource resource) {
  return ((mask >> at(resource)) & 1U) != 0;
}

// Sets the rate of each direction, which depends on whether both are active.
void set_duplex(const DuplexRates& duplex, Resource in, Resource out, ResourceRates::Mask active,
                ResourceRates::Rates& rates) {
  const bool both = is_active(active, in) && is_active(active, out);
  const auto rate = [both](double isolated, double together) {
    return both && together > 0 ? std::min(together, isolated) : isolated;
  };
  rates[at(in)] = rate(duplex.in_bytes_per_s, duplex.in_both_bytes_per_s);
  rates[at(out)] = rate(duplex.out_bytes_per_s, duplex.out_both_bytes_per_s);
}

// If the total exceeds the DRAM bandwidth, all traffic is reduced by the same share. AdamW was
// measured alone, so alone it keeps its measured rate.
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
    if (r != at(Resource::kGpu) && r != at(Resource::kLink)) rates[r] *= most / asked;
}

}  // namespace

Resource resource_of(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
    case Stream::kLinkCompute:
      return Resource::kGpu;
    case Stream::kLink:
      return Resource::kLink;
    case Stream::kParamsIn:
    case Stream::kInputsIn:
    case Stream::kSumsIn:
      return Resource::kHostToGpu;
    case Stream::kGradientsOut:
    case Stream::kInputsOut:
      return Resource::kGpuToHost;
    case Stream::kStateReads:
    case Stream::kParamReads:
    case Stream::kInputReads:
    case Stream::kGradientReads:
      return Resource::kDriveRead;
    case Stream::kStateWrites:
    case Stream::kParamWrites:
    case Stream::kInputWrites:
    case Stream::kGradientWrites:
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
    rates[at(Resource::kLink)] = 1;
    rates[at(Resource::kCpu)] = speeds.cpu_adamw_elements_per_s;
    set_duplex(speeds.bus, Resource::kHostToGpu, Resource::kGpuToHost, active, rates);
    set_duplex(speeds.drives, Resource::kDriveRead, Resource::kDriveWrite, active, rates);
    share_dram(speeds, cpu_adamw_dram_bytes, active, rates);
  }
}

double ResourceRates::isolated(Resource resource) const {
  return of(1U << at(resource))[at(resource)];
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

// Most looks find that the task still waits for the same one.
bool FluidSchedule::may_begin(Line& line) const {
  const auto waits = [this](TaskId it) { return it != kNoTask && times(it).end_s < 0; };
  if (waits(line.blocker)) return false;
  const auto& after = task(line.tasks[line.next]).after;
  const auto* const blocker = std::find_if(after.begin(), after.end(), waits);
  line.blocker = blocker == after.end() ? kNoTask : *blocker;
  return blocker == after.end();
}

// Tasks without work are done immediately.
bool FluidSchedule::begin_next(Line& line) {
  if (line.active || line.next == line.tasks.size()) return false;
  if (!may_begin(line)) return false;
  const TaskId id = line.tasks[line.next];
  Times& times = times_[static_cast<std::size_t>(id)];
  times.begin_s = now_s_;
  begun_[static_cast<std::size_t>(id)] = true;
  if (task(id).work > 0) {
    line.active = true;
    line.outside = task(id).outside;
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

// The rate of each stream, as long as no task begins or ends.
FluidSchedule::Shares FluidSchedule::shares(const ResourceRates& rates) const {
  Shares shares{.active = outside_, .next_s = std::numeric_limits<double>::infinity()};
  std::array<int, kResources> sharers{};
  for (std::size_t s = 0; s < lines_.size(); ++s) {
    if (!runs(lines_[s])) continue;
    const std::size_t resource = at(resource_of(static_cast<Stream>(s)));
    shares.active |= 1U << resource;
    ++sharers[resource];
  }
  const ResourceRates::Rates& rate = rates.of(shares.active);
  for (std::size_t s = 0; s < lines_.size(); ++s) {
    if (!runs(lines_[s])) continue;
    const std::size_t resource = at(resource_of(static_cast<Stream>(s)));
    shares.rate[s] = rate[resource] / sharers[resource];
    shares.next_s = std::min(shares.next_s, lines_[s].left / shares.rate[s]);
  }
  return shares;
}

// Advances at most to the end of the next task to end.
void FluidSchedule::spend(const Shares& shares, double step_s, double busy_weight) {
  now_s_ += step_s;
  for (std::size_t r = 0; r < kResources; ++r)
    if (((shares.active >> r) & 1U) != 0) busy_s_[r] += busy_weight * step_s;
  if (is_active(shares.active, Resource::kLink) && !is_active(shares.active, Resource::kGpu))
    link_alone_s_ += busy_weight * step_s;
  constexpr double kRounding = 1 + 1e-12;
  for (std::size_t s = 0; s < lines_.size(); ++s) {
    Line& line = lines_[s];
    if (!runs(line)) continue;
    const double work = shares.rate[s] * step_s;
    if (line.left > work * kRounding) {
      line.left -= work;
      continue;
    }
    line.active = false;
    times_[static_cast<std::size_t>(line.tasks[line.next++])].end_s = now_s_;
  }
}

void FluidSchedule::run(const ResourceRates& rates, TaskId first, TaskId last,
                        const Repeated& repeated) {
  const auto is_done = [&](TaskId id) { return id == kNoTask || times(id).end_s >= 0; };
  times_.assign(tasks_.size(), {});
  begun_.assign(tasks_.size(), false);
  begin_all();
  while (times(last).end_s < 0) {
    const Shares now = shares(rates);
    SLUICE_CHECK(now.active != 0, "a schedule whose tasks come after each other goes on");
    const bool repeats = repeated.more_times > 0 && is_done(repeated.from) && !is_done(repeated.to);
    spend(now, now.next_s, is_done(first) ? 1 + (repeats ? repeated.more_times : 0) : 0);
    begin_all();
  }
}

// ---- with outside tasks -------------------------------------------------------------------------

void FluidSchedule::begin(const ResourceRates& rates) {
  rates_ = &rates;
  times_.assign(tasks_.size(), {});
  begun_.assign(tasks_.size(), false);
  begin_all();
}

double FluidSchedule::next_end_s() const { return now_s_ + shares(*rates_).next_s; }

void FluidSchedule::advance_to(double time_s, ResourceRates::Mask outside) {
  for (;;) {
    const Shares now = shares(*rates_);
    if (now_s_ + now.next_s > time_s) {
      if (time_s > now_s_) spend(now, time_s - now_s_, /*busy_weight=*/1);
      break;
    }
    spend(now, now.next_s, /*busy_weight=*/1);
    begin_all();
  }
  outside_ = outside;
}

void FluidSchedule::end(TaskId outside) {
  Line& line = lines_[static_cast<std::size_t>(task(outside).stream)];
  SLUICE_CHECK(line.active && line.outside && line.tasks[line.next] == outside,
               "a task that ends outside has begun");
  line.active = false;
  ++line.next;
  times_[static_cast<std::size_t>(outside)].end_s = now_s_;
  begin_all();
}

TaskId FluidSchedule::begun_outside(Stream stream) const {
  const Line& line = lines_[static_cast<std::size_t>(stream)];
  return line.active && line.outside ? line.tasks[line.next] : kNoTask;
}

bool FluidSchedule::waits_only_for(TaskId id, TaskId outside) const {
  const Line& line = lines_[static_cast<std::size_t>(task(id).stream)];
  if (line.active || line.next == line.tasks.size() || line.tasks[line.next] != id) return false;
  const auto& after = task(id).after;
  return std::all_of(after.begin(), after.end(),
                     [&](TaskId it) { return it == kNoTask || it == outside || has_ended(it); });
}

}  // namespace sluice::offload
