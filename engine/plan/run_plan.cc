#include "engine/plan/run_plan.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "aio/real_file_system.h"
#include "engine/plan/described_machine.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/plan/plan_advice.h"
#include "engine/plan/rank_growth.h"
#include "engine/preflight/shared_file_systems.h"

namespace sluice::engine {
namespace {

// The capacity of the drives, which an earlier run's files may partly occupy. For drives that are
// not this machine's, the room that the plan has on them.
double drive_bytes(const PlanSubject& subject, const PlacedRun& placed,
                   const PlanRunOptions& options) {
  double bytes = 0;
  if (!subject.machine.nvme_gib && options.files == nullptr) {
    aio::RealFileSystem files;
    for (const auto& it :
         file_systems_of_paths(files, placed.machine.stripes.paths, options.file_system_of)) {
      std::error_code error;
      const auto space = std::filesystem::space(it.folder, error);
      if (!error) bytes += static_cast<double>(space.capacity);
    }
  }
  return bytes > 0 ? bytes : static_cast<double>(subject.ranks.of_host(placed.budget.nvme));
}

RunPlan plan_of(const PlanSubject& subject, PlacedRun placed) {
  const config::Config& config = subject.config;
  return {.memory = std::move(placed.memory),
          .input = std::move(placed.input),
          .placement = std::move(placed.placement),
          .machine = std::move(placed.machine.report),
          .facts = placed.machine.facts,
          .available = available_on(placed.machine, subject),
          .budget = placed.budget,
          .beside = subject.beside,
          .stripes = std::move(placed.machine.stripes),
          .parameters = subject.model.parameter_elements(),
          .trained = subject.model.trained_elements(),
          .trains_adapters = subject.model.has_frozen(),
          .tokens_per_step = config.batch.micro * config.batch.accumulation *
                             config.data.sequence_tokens * subject.ranks.world,
          .ranks = subject.ranks};
}

}  // namespace

double DescribedMachine::gpu_memory_gib() const {
  return gpu_gib.value_or(gpu != nullptr ? gpu->memory_gib : kAssumedGpu.memory_gib);
}

config::Budget planned_budget(config::Budget budget, const DescribedMachine& machine) {
  if (machine.cpu_gib) budget.cpu_gib = machine.cpu_gib;
  if (machine.gpu_gib) budget.gpu_gib = machine.gpu_gib;
  // A described GPU's memory is not this machine's.
  else if (machine.gpu != nullptr && budget.gpu_gib)
    budget.gpu_gib = std::min(*budget.gpu_gib, machine.gpu_memory_gib());
  else if (machine.describes_gpu() && !budget.gpu_gib)
    budget.gpu_gib = machine.gpu_memory_gib();
  return budget;
}

std::optional<RunOutlook> run_outlook(const config::Config& config, const RunPlan& plan) {
  if (config.run.steps <= 0 || !plan.placement.fits) return std::nullopt;
  constexpr double kSecondsOfAnHour = 3600;
  const offload::StepPrediction& step = plan.placement.prediction;
  const auto steps = static_cast<double>(config.run.steps);
  RunOutlook outlook{.steps = config.run.steps,
                     .hours = steps * step.step_s / kSecondsOfAnHour,
                     .written_tb = 1e-12 * steps * step.nvme_write_bytes * plan.ranks.local_world};
  if (plan.drive_tbw > 0) outlook.drive_life = outlook.written_tb / plan.drive_tbw;
  return outlook;
}

Result<RunPlan> plan_run(const config::Config& given, const PlanRunOptions& asked) {
  aio::RealFileSystem here;
  aio::FileSystem& files = asked.files != nullptr ? *asked.files : here;
  SLUICE_ASSIGN_OR_RETURN(const PlanSubject subject, plan_subject(given, asked, files));
  SLUICE_ASSIGN_OR_RETURN(PlanMachine machine, plan_machine(subject, asked, files));
  SLUICE_ASSIGN_OR_RETURN(const PlacedRun placed, place_run(subject, std::move(machine)));
  RunPlan plan = plan_of(subject, placed);
  if (!plan.stripes.paths.empty()) {
    plan.drive_tbw = rated_tbw(subject.machine, drive_bytes(subject, placed, asked));
    plan.drive_tbw_assumed = !subject.machine.drive_tbw;
  }
  SLUICE_ASSIGN_OR_RETURN(plan.placement.hints, fit_hints(subject, placed));
  if (!plan.placement.fits) return plan;
  if (asked.with_what_ifs) {
    SLUICE_ASSIGN_OR_RETURN(plan.what_if, what_ifs(subject, placed));
  }
  if (asked.with_growth && !plan.ranks.is_alone()) {
    SLUICE_ASSIGN_OR_RETURN(plan.growth, rank_growth(subject, plan));
  }
  return plan;
}

}  // namespace sluice::engine
