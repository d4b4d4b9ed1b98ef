#include "engine/plan/simulate/simulated_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "engine/observe/io_trace.h"
#include "engine/observe/pass_span.h"
#include "engine/plan/simulate/simulated_drives.h"
#include "offload/planner/step_graph.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

using offload::FluidSchedule;
using offload::Resource;
using offload::ResourceRates;
using offload::StepGraph;
using offload::Stream;
using offload::TaskId;

constexpr std::array<TraceTrack, offload::kResources> kTracks = {
    TraceTrack::kCompute,  TraceTrack::kH2d,       TraceTrack::kD2h, TraceTrack::kAdamw,
    TraceTrack::kNvmeRead, TraceTrack::kNvmeWrite, TraceTrack::kLink};

constexpr ResourceRates::Mask kDrives = 1U << static_cast<unsigned>(Resource::kDriveRead) |
                                        1U << static_cast<unsigned>(Resource::kDriveWrite);

// The phase in a run's trace; nullptr: the task is not a phase of a unit.
const char* phase_of(offload::StepTask kind) {
  using Kind = offload::StepTask;
  switch (kind) {
    case Kind::kForward:
      return phase_name(PassPhase::kForward);
    case Kind::kHead:
      return phase_name(PassPhase::kLoss);
    case Kind::kBackward:
      return phase_name(PassPhase::kBackward);
    case Kind::kGpuAdamw:
    case Kind::kCpuAdamw:
    case Kind::kShardAdamw:
      return "adamw";
    case Kind::kParamsIn:
      return "parameters";
    case Kind::kInputIn:
    case Kind::kInputOut:
      return "unit input";
    case Kind::kGradientOut:
      return "gradient";
    case Kind::kSumOut:
    case Kind::kSumIn:
      return "sum of gradients";
    case Kind::kGather:
      return "gather";
    case Kind::kReduce:
      return "reduce";
    case Kind::kAddSums:
      return "add sums";
    default:
      return nullptr;
  }
}

class Simulation {
 public:
  Simulation(const config::Config& config, const RunPlan& plan, const SimulationOptions& options)
      : config_(config),
        plan_(plan),
        options_(options),
        io_trace_(options.trace != nullptr ? *options.trace : no_trace_),
        rates_(plan.input.speeds, plan.input.step.bytes.cpu_adamw_dram),
        graph_(plan.input.units, plan.placement.places, plan.input.speeds, plan.input.step,
               {.steps = options.steps + 1, .drives_outside = true, .all_waves = true}) {
    begun_.fill(offload::kNoTask);
  }

  Result<std::vector<StepMetrics>> run() {
    if (uses_drives()) {
      SLUICE_ASSIGN_OR_RETURN(drives_, SimulatedDrives::create(loop_, drives_options()));
    }
    origin_ns_ = loop_.now_ns();
    schedule().begin(rates_);
    go_on();
    for (const StepGraph::RecordTasks& record : graph_.records())
      SLUICE_RETURN_IF_ERROR(update(record));
    SLUICE_RETURN_IF_ERROR(run_until([this] { return ended_.size() == graph_.steps().size(); }));
    if (drives_ != nullptr) SLUICE_RETURN_IF_ERROR(drives_->drain());
    trace_tasks();
    std::vector<StepMetrics> steps;
    for (int step = 1; step <= options_.steps; ++step) steps.push_back(metrics_of(step));
    return steps;
  }

 private:
  FluidSchedule& schedule() { return graph_.schedule(); }
  bool uses_drives() const {
    const offload::StepPrediction& step = plan_.placement.prediction;
    return step.nvme_read_bytes + step.nvme_write_bytes > 0;
  }

  SimulatedDrives::Options drives_options() {
    const MemoryPlan& memory = plan_.memory;
    SimulatedDrives::Options options{
        .rates = plan_.input.speeds.drives,
        .queue = {.block_bytes = static_cast<std::uint64_t>(config_.aio.block_bytes),
                  .queue_depth = static_cast<int>(config_.aio.queue_depth),
                  .observer = &io_trace_},
        .state_chunk_bytes = offload::tile_bytes(memory.types.state()),
        .swap = memory.state.optimizer.swap};
    std::uint64_t first = 0;
    for (const StepGraph::Record& record : graph_.records_of_a_step()) {
      const auto elements = static_cast<std::uint64_t>(record.elements);
      options.state.push_back(
          {.parameter = "state",
           .first_element = std::exchange(first, first + elements),
           .elements = elements,
           .payload_bytes = offload::state_bytes(memory.types.state(), elements)});
    }
    options.params = moved_by(offload::StepTask::kParamRead, 1);
    options.inputs = moved_by(offload::StepTask::kInputWrite,
                              static_cast<int>(plan_.input.step.waves.of_a_wave));
    options.gradients = moved_by(offload::StepTask::kGradientWrite, 1);
    return options;
  }

  // Records of the bytes that tasks of this kind move for each unit.
  SimulatedDrives::UnitRecords moved_by(offload::StepTask kind, int of_unit) {
    std::vector<double> bytes(plan_.input.units.size());
    for (TaskId id = 0; id < schedule().tasks(); ++id) {
      if (graph_.kind(id) != kind) continue;
      double& most = bytes[static_cast<std::size_t>(graph_.unit_of(id))];
      most = std::max(most, schedule().task(id).work);
    }
    SimulatedDrives::UnitRecords units{.of_unit = of_unit};
    for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
      units.first.push_back(static_cast<int>(units.records.size()));
      for (int record = 0; bytes[unit] > 0 && record < of_unit; ++record)
        units.records.push_back({.parameter = plan_.input.units[unit].name,
                                 .first_element = static_cast<std::uint64_t>(record),
                                 .elements = 1,
                                 .payload_bytes = static_cast<std::uint64_t>(bytes[unit]) /
                                                  static_cast<std::uint64_t>(of_unit)});
    }
    return units;
  }

  // ---- time

  double now_s() const { return static_cast<double>(loop_.now_ns() - origin_ns_) * 1e-9; }
  std::int64_t ns_of(double time_s) const {
    return origin_ns_ + static_cast<std::int64_t>(std::ceil(time_s * 1e9));
  }

  // Advances the schedule to the loop's time.
  void catch_up() {
    schedule().advance_to(now_s(), drives_ != nullptr && drives_->busy() ? kDrives : 0);
  }

  // After an event: starts what follows from it, and schedules the next look.
  void go_on() {
    begin_transfers();
    note_steps();
    const std::uint64_t turn = ++turn_;
    const double next_s = schedule().next_end_s();
    if (!std::isfinite(next_s)) return;
    loop_.schedule_at(ns_of(next_s), [this, turn] {
      if (turn != turn_) return;  // another event has happened in the meantime
      catch_up();
      go_on();
    });
  }

  template <typename Condition>
  Status run_until(const Condition& condition) {
    if (loop_.run_until(condition)) return {};
    return Error(ErrorCode::kInternal,
                 "the simulated run is stuck at " + std::to_string(now_s()) + " s: this is a bug");
  }

  // ---- drives

  // All of a step's state is announced when backward begins, and read as buffers permit, as in the
  // run. Parameters, inputs and gradients are transferred one after another, each kind on its own.
  void begin_transfers() {
    const TaskId state = schedule().begun_outside(Stream::kStateReads);
    if (state != offload::kNoTask && announced_ < graph_.records().size() &&
        graph_.records()[announced_].read == state) {
      announced_ += graph_.records_of_a_step().size();
      drives_->announce();
    }
    using Transfer = SimulatedDrives::Transfer;
    begin(Stream::kParamReads, Transfer::kReadParams);
    begin(Stream::kParamWrites, Transfer::kWriteParams);
    begin(Stream::kInputReads, Transfer::kReadInputs);
    begin(Stream::kInputWrites, Transfer::kWriteInputs);
    begin(Stream::kGradientReads, Transfer::kReadGradients);
    begin(Stream::kGradientWrites, Transfer::kWriteGradients);
  }

  void begin(Stream stream, SimulatedDrives::Transfer transfer) {
    const TaskId task = schedule().begun_outside(stream);
    TaskId& begun = begun_[static_cast<std::size_t>(transfer)];
    if (task == offload::kNoTask || std::exchange(begun, task) == task) return;
    drives_->transfer(transfer, graph_.unit_of(task), schedule().task(task).work, [this, task] {
      catch_up();
      schedule().end(task);
      go_on();
    });
  }

  // Updates one record as NvmeState does, with virtual time instead of AdamW.
  Status update(const StepGraph::RecordTasks& tasks) {
    SLUICE_RETURN_IF_ERROR(
        run_until([&] { return schedule().waits_only_for(tasks.computed, tasks.read); }));
    SLUICE_ASSIGN_OR_RETURN(auto loan, drives_->next());
    catch_up();
    schedule().end(tasks.read);
    go_on();
    SLUICE_RETURN_IF_ERROR(run_until([&] { return schedule().has_ended(tasks.computed); }));
    drives_->write(std::move(loan));
    return drives_->status();
  }

  // ---- results

  struct Ended {
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
  };

  void note_steps() {
    while (ended_.size() < graph_.steps().size() &&
           schedule().has_ended(graph_.steps()[ended_.size()].last)) {
      const std::int64_t end_ns = ns_of(schedule().times(graph_.steps()[ended_.size()].last).end_s);
      if (drives_ != nullptr)
        ended_.push_back({drives_->bytes_read(), drives_->bytes_written()});
      else
        ended_.emplace_back();
      if (options_.trace == nullptr) continue;
      if (ended_.size() < graph_.steps().size())
        options_.trace->begin_step(static_cast<std::int64_t>(ended_.size()), end_ns);
      else
        options_.trace->end_steps(end_ns);
    }
  }

  void trace_tasks() {
    if (options_.trace == nullptr) return;
    for (TaskId id = 0; id < schedule().tasks(); ++id) {
      const FluidSchedule::Task& task = schedule().task(id);
      if (task.work == 0 || task.outside || !schedule().has_ended(id)) continue;
      const Resource resource = offload::resource_of(task.stream);
      TraceSpan span{
          .track = kTracks[static_cast<std::size_t>(resource)],
          .name = plan_.input.units[static_cast<std::size_t>(graph_.unit_of(id))].name.c_str(),
          .begin_ns = ns_of(schedule().times(id).begin_s),
          .end_ns = ns_of(schedule().times(id).end_s),
          .phase = phase_of(graph_.kind(id))};
      if (resource == Resource::kHostToGpu || resource == Resource::kGpuToHost)
        span.args[0] = {"bytes", static_cast<std::int64_t>(task.work)};
      options_.trace->add(span);
    }
  }

  StepMetrics metrics_of(int step) {
    const auto index = static_cast<std::size_t>(step);
    const StepGraph::Marks& marks = graph_.steps()[index];
    const double begin_s = graph_.begin_s(marks);
    const double forward_s = graph_.forward_s(marks);
    const double end_s = schedule().times(marks.last).end_s;
    const double exposed_s = graph_.exposed_s(marks);
    const auto work = [&](Resource resource) {
      return static_cast<std::uint64_t>(graph_.work()[static_cast<std::size_t>(resource)]);
    };
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = std::numeric_limits<double>::quiet_NaN();
    metrics.step_ms = 1e3 * (end_s - begin_s);
    metrics.tokens_per_s = static_cast<double>(plan_.tokens_per_step) / (end_s - begin_s);
    // Forward lasts until the head is done. The time for which it waited for updates is not part of
    // it, as in a run's metrics.
    metrics.forward_ms = 1e3 * std::max(0.0, forward_s - exposed_s);
    metrics.backward_ms = 1e3 * (end_s - begin_s - forward_s);
    metrics.update_ms = 1e3 * (schedule().times(marks.gates.back()).end_s - begin_s);
    metrics.update_exposed_ms = 1e3 * exposed_s;
    metrics.nvme_read_bytes = ended_[index].bytes_read - ended_[index - 1].bytes_read;
    metrics.nvme_write_bytes = ended_[index].bytes_written - ended_[index - 1].bytes_written;
    metrics.h2d_bytes = work(Resource::kHostToGpu);
    metrics.d2h_bytes = work(Resource::kGpuToHost);
    metrics.gpu_peak_bytes = plan_.memory.cuda ? plan_.memory.gpu_bytes() : 0;
    metrics.host_pinned_bytes = plan_.memory.locked_bytes();
    metrics.host_rss_bytes = plan_.memory.host_bytes();
    return metrics;
  }

  const config::Config& config_;
  const RunPlan& plan_;
  const SimulationOptions& options_;
  TraceLog no_trace_;
  IoTrace io_trace_;
  aio::VirtualLoop loop_;
  const ResourceRates rates_;
  StepGraph graph_;
  std::unique_ptr<SimulatedDrives> drives_;
  std::int64_t origin_ns_ = 0;
  std::uint64_t turn_ = 0;
  std::size_t announced_ = 0;  // records, over all steps
  std::array<TaskId, SimulatedDrives::kTransfers> begun_;
  std::vector<Ended> ended_;  // by step
};

}  // namespace

Result<std::vector<StepMetrics>> simulate_run(const config::Config& config, const RunPlan& plan,
                                              const SimulationOptions& options) {
  if (!std::isfinite(plan.placement.prediction.step_s)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the plan needs the speed of a resource that was not measured (" +
                     std::string(to_string(plan.placement.prediction.bottleneck)) +
                     "): measure it (sluice probe), or give it (sluice plan --help)");
  }
  return Simulation(config, plan, options).run();
}

}  // namespace sluice::engine
