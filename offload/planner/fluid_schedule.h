// FluidSchedule: tasks in virtual time. Each task is on a stream. A stream runs its tasks one at a
// time, in the order in which they were added, each as soon as its predecessors are done. Streams
// belong to resources: the active streams of one resource share its rate equally, and the rate
// depends on which other resources are active.
//
// A task may also be outside: its work is done elsewhere, in the same virtual time, and its end is
// reported with end(). The schedule is then not run but stepped: begin(), then advance_to() the
// time of the next event.
//
// Memory:  reserved by the caller's estimate; tasks are small.
// Threads: none of its own; one caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/planner/machine_speeds.h"
#include "offload/planner/step_model.h"

namespace sluice::offload {

enum class Stream : std::uint8_t {
  kCompute,
  kParamsIn,
  kInputsIn,
  kSumsIn,
  kGradientsOut,
  kInputsOut,
  kUpdates,
  kStateReads,
  kParamReads,
  kStateWrites,
  kParamWrites,
  kInputReads,
  kInputWrites,
  kGradientReads,
  kGradientWrites,
  kLink,
  kLinkCompute,  // GPU work between collectives
  kHost,         // decisions: tasks without work
};
inline constexpr int kStreams = 18;
Resource resource_of(Stream stream);

// The work that each resource does per second while certain others are active: seconds for the GPU,
// elements for the CPU, bytes for the others. The link's work is also in seconds, and it slows no
// other resource.
class ResourceRates {
 public:
  using Mask = unsigned;  // bit r: resource r is active
  using Rates = std::array<double, kResources>;

  ResourceRates(const MachineSpeeds& speeds, double cpu_adamw_dram_bytes);
  const Rates& of(Mask active) const { return table_[active & (kRows - 1)]; }
  double isolated(Resource resource) const;

 private:
  // Indexed by the resources that slow each other: all but the link, which is the last.
  static constexpr Mask kRows = 1U << static_cast<unsigned>(Resource::kLink);

  std::array<Rates, kRows> table_{};
};

using TaskId = std::int32_t;
inline constexpr TaskId kNoTask = -1;

class FluidSchedule {
 public:
  static constexpr std::size_t kMaxAfter = 4;
  struct Task {
    Stream stream = Stream::kHost;
    double work = 0;
    std::array<TaskId, kMaxAfter> after = {kNoTask, kNoTask, kNoTask, kNoTask};
    bool outside = false;
  };
  struct Times {
    double begin_s = 0;
    double end_s = -1;  // below 0: not done
  };

  explicit FluidSchedule(std::size_t expected_tasks);
  TaskId add(const Task& task);

  // An interval that represents several equal ones: from the end of task `from` to the end of `to`.
  struct Repeated {
    TaskId from = kNoTask;
    TaskId to = kNoTask;
    double more_times = 0;
  };
  // Runs until `last` is done. busy_s() counts from the end of `first` (kNoTask: from 0).
  void run(const ResourceRates& rates, TaskId first, TaskId last, const Repeated& repeated);
  void run(const ResourceRates& rates, TaskId first, TaskId last) {
    run(rates, first, last, Repeated());
  }

  // ---- with outside tasks

  // Starts the first tasks. `rates` must outlive the schedule.
  void begin(const ResourceRates& rates);
  // When the next task ends if no outside task ends before; infinite: none does.
  double next_end_s() const;
  // `time_s` is at least now_s(). `outside`: resources used by others meanwhile.
  void advance_to(double time_s, ResourceRates::Mask outside = 0);
  void end(TaskId outside);                   // ends it now; it must have begun
  TaskId begun_outside(Stream stream) const;  // begun and not ended; kNoTask: none
  // Whether task `id` waits only for `outside`, on its stream and through its predecessors.
  bool waits_only_for(TaskId id, TaskId outside) const;
  bool has_ended(TaskId id) const { return times(id).end_s >= 0; }

  const Task& task(TaskId id) const { return tasks_[static_cast<std::size_t>(id)]; }
  TaskId tasks() const { return static_cast<TaskId>(tasks_.size()); }
  const Times& times(TaskId id) const { return times_[static_cast<std::size_t>(id)]; }
  bool has_begun(TaskId id) const { return begun_[static_cast<std::size_t>(id)]; }
  double now_s() const { return now_s_; }
  const std::array<double, kResources>& busy_s() const { return busy_s_; }
  double link_alone_s() const { return link_alone_s_; }  // while nothing computes

 private:
  struct Line {
    std::vector<TaskId> tasks;
    std::size_t next = 0;
    bool active = false;
    bool outside = false;      // whether the active task is
    double left = 0;           // of the active task's work
    TaskId blocker = kNoTask;  // what the next task waited for when it was last looked at
  };

  bool may_begin(Line& line) const;
  void begin_all();
  bool begin_next(Line& line);
  bool runs(const Line& line) const { return line.active && !line.outside; }
  struct Shares {
    ResourceRates::Mask active = 0;
    std::array<double, kStreams> rate{};
    double next_s = 0;  // until a task ends; infinite: none is running
  };
  Shares shares(const ResourceRates& rates) const;
  void spend(const Shares& shares, double step_s, double busy_weight);

  std::vector<Task> tasks_;
  std::vector<Times> times_;
  std::vector<bool> begun_;
  std::array<Line, kStreams> lines_;
  std::array<double, kResources> busy_s_{};
  double link_alone_s_ = 0;
  double now_s_ = 0;
  const ResourceRates* rates_ = nullptr;  // the argument of begin()
  ResourceRates::Mask outside_ = 0;
};

}  // namespace sluice::offload
