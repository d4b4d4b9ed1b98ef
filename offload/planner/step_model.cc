#include "offload/planner/step_model.h"

#include <algorithm>
#include <limits>

#include "aio/check.h"
#include "offload/planner/fluid_schedule.h"
#include "offload/planner/step_graph.h"

namespace sluice::offload {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

constexpr std::size_t at(Resource resource) { return static_cast<std::size_t>(resource); }

void check_places(const std::vector<UnitCost>& units, const std::vector<UnitPlacement>& places) {
  SLUICE_CHECK(!units.empty() && units.size() == places.size(), "each unit has its place");
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPlacement& place = places[i];
    SLUICE_CHECK(place.gpu_elements + place.cpu_elements + place.nvme_elements == units[i].elements,
                 "a unit's elements are each on one tier");
  }
}

bool updates_on_gpu(const std::vector<UnitPlacement>& places) {
  return std::any_of(places.begin(), places.end(),
                     [](const UnitPlacement& place) { return place.gpu_elements > 0; });
}

std::array<double, kResources> isolated_s(const std::array<double, kResources>& work,
                                          const ResourceRates& rates) {
  std::array<double, kResources> busy{};
  for (int r = 0; r < kResources; ++r) {
    const auto resource = static_cast<Resource>(r);
    const double rate = rates.isolated(resource);
    if (work[at(resource)] > 0) busy[at(resource)] = rate > 0 ? work[at(resource)] / rate : kNever;
  }
  return busy;
}

std::vector<StepSpan> spans_of(StepGraph& graph, double begin_s, double end_s) {
  std::vector<StepSpan> spans;
  for (TaskId id = 0; id < graph.schedule().tasks(); ++id) {
    const FluidSchedule::Task& task = graph.schedule().task(id);
    if (task.work == 0 || !graph.schedule().has_begun(id)) continue;
    const FluidSchedule::Times& times = graph.schedule().times(id);
    const double ended_s = times.end_s < 0 ? end_s : times.end_s;
    if (ended_s <= begin_s || times.begin_s >= end_s) continue;
    spans.push_back({.resource = resource_of(task.stream),
                     .what = graph.name(id),
                     .begin_s = std::max(times.begin_s, begin_s) - begin_s,
                     .end_s = std::min(ended_s, end_s) - begin_s});
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const StepSpan& a, const StepSpan& b) { return a.begin_s < b.begin_s; });
  return spans;
}

}  // namespace

std::string_view to_string(Resource resource) {
  switch (resource) {
    case Resource::kGpu:
      return "GPU";
    case Resource::kHostToGpu:
      return "bus to the GPU";
    case Resource::kGpuToHost:
      return "bus from the GPU";
    case Resource::kCpu:
      return "CPU";
    case Resource::kDriveRead:
      return "drives, reading";
    case Resource::kDriveWrite:
      return "drives, writing";
    case Resource::kLink:
      return "link between ranks";
  }
  return "?";
}

StepPrediction predict_step(const std::vector<UnitCost>& units,
                            const std::vector<UnitPlacement>& places, const MachineSpeeds& speeds,
                            const StepModelOptions& options, bool with_spans) {
  check_places(units, places);
  StepPrediction prediction;
  const ResourceRates rates(speeds, options.bytes.cpu_adamw_dram);
  StepGraph graph(units, places, speeds, options);
  const std::array<double, kResources>& work = graph.work();
  prediction.h2d_bytes = work[at(Resource::kHostToGpu)];
  prediction.d2h_bytes = work[at(Resource::kGpuToHost)];
  prediction.nvme_read_bytes = work[at(Resource::kDriveRead)];
  prediction.nvme_write_bytes = work[at(Resource::kDriveWrite)];
  prediction.link_bytes = graph.received_bytes();
  const auto isolated = isolated_s(work, rates);
  const auto missing = std::find(isolated.begin(), isolated.end(), kNever);
  if (missing != isolated.end() ||
      (updates_on_gpu(places) && speeds.gpu_adamw_elements_per_s <= 0)) {
    prediction.step_s = kNever;
    prediction.bottleneck = missing != isolated.end()
                                ? static_cast<Resource>(missing - isolated.begin())
                                : Resource::kGpu;
    return prediction;
  }
  FluidSchedule& schedule = graph.schedule();
  const StepGraph::Marks& step = graph.reported();
  schedule.run(rates, step.first, step.last, graph.repeated(step));
  const double begin_s = graph.begin_s(step);
  prediction.step_s = graph.end_s(step) - begin_s;
  prediction.forward_s = graph.forward_s(step);
  prediction.busy_s = schedule.busy_s();
  prediction.link_exposed_s = schedule.link_alone_s();
  prediction.bottleneck =
      static_cast<Resource>(std::max_element(prediction.busy_s.begin(), prediction.busy_s.end()) -
                            prediction.busy_s.begin());
  prediction.update_exposed_s = graph.exposed_s(step);
  if (with_spans) prediction.spans = spans_of(graph, begin_s, schedule.times(step.last).end_s);
  return prediction;
}

}  // namespace sluice::offload
