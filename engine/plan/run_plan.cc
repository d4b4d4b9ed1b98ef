#include "engine/plan/run_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "aio/real_file_system.h"
#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/budget/gradient_plan.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/families/families.h"
#include "engine/plan/described_machine.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/plan/planner_input.h"
#include "engine/plan/rank_growth.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/preflight/shared_file_systems.h"
#include "engine/probe/machine_probe.h"

namespace sluice::engine {
namespace {

using offload::TierBytes;

std::uint64_t bytes_of_gib(double gib) { return static_cast<std::uint64_t>(gib * kGiB); }

// Of what all ranks of a host share.
std::uint64_t of_rank(std::uint64_t host_bytes, const offload::RankGroup& ranks) {
  return host_bytes / static_cast<std::uint64_t>(ranks.local_world);
}
std::uint64_t of_host(std::uint64_t rank_bytes, const offload::RankGroup& ranks) {
  return rank_bytes * static_cast<std::uint64_t>(ranks.local_world);
}

std::uint64_t nvme_room(const config::Config& config, const DescribedMachine& machine,
                        const NvmeStripes& stripes) {
  if (stripes.paths.empty()) return 0;
  if (machine.nvme_gib) return bytes_of_gib(*machine.nvme_gib);
  if (config.budget.nvme_gib) return bytes_of_gib(*config.budget.nvme_gib);
  return stripes.room();
}

TierBytes budget_of(const config::Config& config, const DescribedMachine& machine,
                    const RunPlan& plan) {
  constexpr std::uint64_t kUnknown = std::uint64_t{1} << 46;  // the machine does not report it
  const config::Budget given = planned_budget(config.budget, machine);
  const std::uint64_t gpu = gpu_room(given, plan.facts).value_or(kUnknown);
  return {.gpu = static_cast<std::uint64_t>(static_cast<double>(gpu) * (1 - kGpuSlack)),
          .cpu = of_rank(host_room(given, plan.facts).value_or(kUnknown), plan.ranks),
          .nvme = of_rank(nvme_room(config, machine, plan.stripes), plan.ranks)};
}

// Of the machine that is planned for.
TierBytes available_on(const DescribedMachine& machine, const MachineFacts& facts) {
  TierBytes available{.gpu = gpu_free(facts).value_or(0), .cpu = host_free(facts).value_or(0)};
  if (machine.describes_gpu()) available.gpu = bytes_of_gib(machine.gpu_memory_gib());
  if (machine.cpu_gib) available.cpu = bytes_of_gib(*machine.cpu_gib);
  return available;
}

struct Question {
  const config::Config& config;
  const ModelLayout& model;
  const DescribedMachine& machine;
  bool on_gpu = false;
  offload::RankGroup ranks = {};
  const DescribedModel* described = nullptr;
  const ParameterNames* names = nullptr;
};

bool is_described(const DescribedMachine& machine) {
  return machine.describes_gpu() || machine.describes_host() || machine.describes_drives();
}

// Of the question's model with `config`, which may differ from its own.
Result<offload::PlannerInput> input_of(const Question& question, const config::Config& config,
                                       const ProbeReport& machine, const TierBytes& budget,
                                       std::int64_t wave_micro_batches) {
  return planner_input({.config = config,
                        .model = question.model,
                        .machine = machine,
                        .on_gpu = question.on_gpu,
                        .budget = budget,
                        .wave_micro_batches = wave_micro_batches,
                        .ranks = question.ranks,
                        .names = question.names,
                        .keeps_sums = question.described != nullptr});
}

Status place_in_waves_of(std::int64_t micro_batches, const Question& question,
                         const TierBytes& budget, RunPlan& plan) {
  SLUICE_ASSIGN_OR_RETURN(plan.input,
                          input_of(question, question.config, plan.machine, budget, micro_batches));
  SLUICE_ASSIGN_OR_RETURN(plan.placement, offload::plan_placement(plan.input));
  return {};
}

// Whether it fits, and is faster by more than a prediction is worth, or fits at all, or lacks less.
bool is_better(const offload::PlacementPlan& plan, const offload::PlacementPlan& than) {
  constexpr double kWorthIt = 0.98;
  if (plan.fits != than.fits) return plan.fits;
  if (!plan.fits) return plan.missing.total() < than.missing.total();
  return plan.prediction.step_s < kWorthIt * than.prediction.step_s;
}

// In waves of all of a step's micro-batches, a half, a quarter, ..., one; the best. Fewer waves
// take less traffic, and more memory for activations.
Status place(const Question& question, RunPlan& plan) {
  plan.budget = budget_of(question.config, question.machine, plan);
  if (!question.on_gpu) plan.budget.gpu = 0;
  const TierBytes budget = plan.budget.beyond(plan.beside.bytes);
  const std::int64_t all = question.config.batch.accumulation;
  const std::int64_t asked = question.config.placement.wave_micro_batches;
  std::int64_t wave = asked > 0 ? std::min(asked, all) : all;
  SLUICE_RETURN_IF_ERROR(place_in_waves_of(wave, question, budget, plan));
  while (asked == 0 && wave > 1) {
    wave = (wave + 1) / 2;
    RunPlan other = plan;
    SLUICE_RETURN_IF_ERROR(place_in_waves_of(wave, question, budget, other));
    if (is_better(other.placement, plan.placement)) plan = std::move(other);
  }
  SLUICE_ASSIGN_OR_RETURN(plan.memory,
                          plan_memory(question.config, question.model,
                                      {.on_gpu = question.on_gpu,
                                       .places = plan.placement.places,
                                       .block_slots = plan.input.step.slots(),
                                       .wave_micro_batches = plan.input.step.waves.of_a_wave,
                                       .ranks = {.rank = 0, .world = question.ranks.world},
                                       .names = question.names,
                                       .keeps_sums = question.described != nullptr,
                                       .nvme_weights = plan.stripes.chosen()}));
  return {};
}

// Where a path lacks the room for its stripes and other weights would do: with those.
Status place_in_room(const Question& question, RunPlan& plan) {
  if (!may_restripe(question.config, plan.stripes)) return {};
  std::uint64_t needed = plan.memory.nvme_bytes();
  if (!plan.placement.fits) {
    if (plan.placement.missing.nvme == 0) return {};
    needed = std::max(needed, plan.input.budget.nvme + plan.placement.missing.nvme);
  }
  auto weights = roomier_weights(plan.stripes, of_host(needed, plan.ranks));
  if (!weights) return {};
  RunPlan restriped = plan;
  restripe(restriped.stripes, *std::move(weights), restriped.machine);
  SLUICE_RETURN_IF_ERROR(place(question, restriped));
  if (!restriped.placement.fits) return {};
  restriped.memory.notes.push_back(restriped_text(restriped.stripes));
  plan = std::move(restriped);
  return {};
}

// Where no path was named: how large a drive would make it fit, as the planner finds for a run that
// has one.
Status hint_at_a_drive(const Question& question, RunPlan& plan) {
  if (plan.placement.fits || !plan.stripes.paths.empty()) return {};
  constexpr std::uint64_t kSmallDriveBytes = kGiB;
  config::Config config = question.config;
  config.budget.nvme_paths = {"nvme"};
  TierBytes budget = plan.input.budget;
  budget.nvme = kSmallDriveBytes;
  SLUICE_ASSIGN_OR_RETURN(
      const offload::PlannerInput input,
      input_of(question, config, plan.machine, budget, plan.input.step.waves.of_a_wave));
  using Change = offload::FitHint::Change;
  for (const offload::FitHint& hint : offload::fit_hints(input)) {
    if (hint.change != Change::kMoreNvme) continue;
    std::vector<offload::FitHint>& hints = plan.placement.hints;
    const auto behind = std::find_if(hints.begin(), hints.end(), [](const offload::FitHint& it) {
      return it.change > Change::kMoreNvme;
    });
    hints.insert(behind,
                 {.change = Change::kMoreNvme, .more_bytes = hint.more_bytes + kSmallDriveBytes});
  }
  return {};
}

Result<offload::PlannerInput> input_with(const Question& question, const config::Config& config,
                                         const RunPlan& plan) {
  return input_of(question, config, plan.machine, plan.input.budget,
                  plan.input.step.waves.of_a_wave);
}

// Whether it fits with another shape of the batch.
Result<bool> fits_with(const Question& question, const config::Config& config,
                       const RunPlan& plan) {
  SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input, input_with(question, config, plan));
  return offload::leanest_placement(input).missing.total() == 0;
}

// What would make it faster. Twice the tokens of a micro-batch take twice the time.
Result<std::vector<offload::WhatIf>> what_ifs(const Question& question, const RunPlan& plan) {
  const auto twice = [&](const offload::PlannerInput&) -> Result<offload::PlannerInput> {
    config::Config config = question.config;
    config.batch.micro *= 2;
    RunPlan slower = plan;
    for (UnitTimes::OfKind& it : slower.machine.units.kinds) {
      it.seconds.forward_s *= 2;
      it.seconds.recompute_s *= 2;
      it.seconds.backward_s *= 2;
    }
    return input_with(question, config, slower);
  };
  return offload::find_what_ifs(
      plan.input, plan.placement,
      {.more_ram_bytes = of_rank(offload::WhatIfOptions().more_ram_bytes, question.ranks),
       .twice_micro_batch = twice});
}

// Where the configuration says how large waves are: the largest smaller ones with which it fits.
Status hint_at_smaller_waves(const Question& question, RunPlan& plan) {
  if (plan.placement.fits) return {};
  config::Config config = question.config;
  std::int64_t& wave = config.placement.wave_micro_batches;
  wave = std::min(wave, config.batch.accumulation);
  while (wave > 1) {
    wave = (wave + 1) / 2;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(question, config, plan));
    if (!fits) continue;
    plan.placement.hints.push_back(
        {.change = offload::FitHint::Change::kSmallerWaves, .wave_micro_batches = wave});
    return {};
  }
  return {};
}

// What makes activations smaller: the largest micro-batch with which it fits, with the same tokens
// in a step; else the longest sequences.
Status hint_at_a_smaller_batch(const Question& question, RunPlan& plan) {
  if (plan.placement.fits) return {};
  using Change = offload::FitHint::Change;
  std::vector<offload::FitHint>& hints = plan.placement.hints;
  const config::BatchSizes& batch = question.config.batch;
  for (std::int64_t micro = batch.micro / 2; micro >= 1; --micro) {
    if (batch.micro % micro != 0) continue;
    config::Config config = question.config;
    config.batch.accumulation *= batch.micro / micro;
    config.batch.micro = micro;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(question, config, plan));
    if (!fits) continue;
    hints.push_back({.change = Change::kSmallerMicroBatch, .micro_batch = micro});
    return {};
  }
  if (question.described != nullptr) return {};  // its sequences are not the plan's to shorten
  constexpr std::int64_t kShortest = 64;
  config::Config config = question.config;
  while ((config.data.sequence_tokens /= 2) >= kShortest) {
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(question, config, plan));
    if (!fits) continue;
    hints.push_back(
        {.change = Change::kShorterSequences, .sequence_tokens = config.data.sequence_tokens});
    return {};
  }
  return {};
}

// Where a run would keep what goes to a drive that is only described.
config::Config with_described_drive(config::Config config, const DescribedMachine& machine) {
  if (machine.nvme_gib && config.optimizer_nvme_paths().empty() &&
      config.param_nvme_paths().empty())
    config.budget.nvme_paths = {"nvme"};
  return config;
}

// Of a model that this program cannot run.
void estimate_described(const config::Config& config, const ModelLayout& model,
                        ProbeReport& machine) {
  machine.units =
      estimate_units(model,
                     {.micro_batch = config.batch.micro,
                      .tokens = config.data.sequence_tokens,
                      .number_bytes = config.precision == config::Precision::kFp32 ? 4 : 2},
                     rates_for_estimates(config, machine));
  machine.units_when.estimated = true;
}

bool drives_are_here(const config::Config& config, aio::FileSystem& files) {
  const Status found = require_nvme_folders(config, files);
  return found.ok() || found.error().code() != ErrorCode::kNotFound;
}

// The size of the drives, of which an earlier run's files may take a part; what the plan has of
// them, where they are not this machine's.
double drive_bytes(const RunPlan& plan, const PlanRunOptions& options) {
  double bytes = 0;
  if (!options.machine.nvme_gib && options.files == nullptr) {
    aio::RealFileSystem files;
    for (const auto& it :
         file_systems_of_paths(files, plan.stripes.paths, options.file_system_of)) {
      std::error_code error;
      const auto space = std::filesystem::space(it.folder, error);
      if (!error) bytes += static_cast<double>(space.capacity);
    }
  }
  return bytes > 0 ? bytes : static_cast<double>(of_host(plan.budget.nvme, plan.ranks));
}

void set_link(const PlanRunOptions& options, bool on_gpu, ProbeReport& machine) {
  if (options.ranks.is_alone()) return;
  if (options.link) {
    machine.speeds.link = options.link->speeds;
    machine.link_when = options.link->when;
    machine.measured.push_back(options.link->key);
    return;
  }
  machine.speeds.link = described_link(options.machine, on_gpu);
  machine.link_when.estimated = true;
}

}  // namespace

double DescribedMachine::gpu_memory_gib() const {
  return gpu_gib.value_or(gpu != nullptr ? gpu->memory_gib : kAssumedGpu.memory_gib);
}

config::Budget planned_budget(config::Budget budget, const DescribedMachine& machine) {
  if (machine.cpu_gib) budget.cpu_gib = machine.cpu_gib;
  if (machine.gpu_gib) budget.gpu_gib = machine.gpu_gib;
  // A described GPU is not this machine's.
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
  std::vector<std::string> assumed;
  PlanRunOptions options = asked;
  aio::RealFileSystem here;
  aio::FileSystem* const files = options.files != nullptr ? options.files : &here;
  options.machine = with_assumptions(asked.machine, given, drives_are_here(given, *files), assumed);
  if (options.machine.nvme_gib && !options.machine.describes_drives() &&
      nvme_folders(given).empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "--nvme-gib describes a drive whose speed is not known: give "
                 "--drive-read-gb-per-s and --drive-write-gb-per-s too, or a folder on a drive of "
                 "this machine (budget.nvme_paths)");
  }
  RunPlan plan;
  config::Config config = with_described_drive(given, options.machine);
  share_compute_threads(options.ranks.world, options.ranks.local_world, config);
  plan.ranks = options.ranks;
  if (!options.machine.describes_gpu()) SLUICE_RETURN_IF_ERROR(check_device(config));
  const bool on_gpu = options.machine.describes_gpu() || uses_cuda(config);
  if (options.described == nullptr) SLUICE_RETURN_IF_ERROR(validate(config.model.shape()));
  if (options.described != nullptr) config.placement.wave_micro_batches = 1;
  ModelLayout model =
      options.described != nullptr ? options.described->layout : configured_layout(config, on_gpu);
  if (options.holds_first) model.hold(0);
  SLUICE_RETURN_IF_ERROR(check_gradients_on_nvme(
      {.config = config, .model = model, .on_gpu = on_gpu, .names = options.names}));
  plan.parameters = model.parameter_elements();
  plan.trained = model.trained_elements();
  plan.trains_adapters = model.has_frozen();
  plan.tokens_per_step = config.batch.micro * config.batch.accumulation *
                         config.data.sequence_tokens * options.ranks.world;
  plan.facts = machine_facts(config);
  plan.available = available_on(options.machine, plan.facts);
  plan.available.cpu = of_rank(plan.available.cpu, plan.ranks);
  plan.beside = options.beside;
  if (is_described(options.machine)) {
    SLUICE_ASSIGN_OR_RETURN(plan.machine, described_machine(config, model, options));
  } else {
    SLUICE_ASSIGN_OR_RETURN(
        plan.machine, probe_machine(config, {.cache_path = options.cache_path,
                                             .refresh = options.refresh,
                                             .unix_s = options.unix_s,
                                             .disturbed_max_age_s = options.disturbed_max_age_s,
                                             .units = options.described == nullptr,
                                             .local_ranks = options.ranks.local_world,
                                             .on_progress = options.on_progress}));
  }
  // Of a described GPU its units are estimated already.
  if (options.described != nullptr && !options.machine.describes_gpu())
    estimate_described(config, model, plan.machine);
  plan.machine.assumed.insert(plan.machine.assumed.end(), assumed.begin(), assumed.end());
  if (is_described(options.machine))
    plan.machine.from_here = from_here(options.machine, config, on_gpu);
  set_link(options, on_gpu, plan.machine);
  plan.stripes = nvme_stripes(config, plan.machine, options.machine.nvme_gib ? nullptr : files,
                              options.file_system_of);
  const Question question{.config = config,
                          .model = model,
                          .machine = options.machine,
                          .on_gpu = on_gpu,
                          .ranks = options.ranks,
                          .described = options.described,
                          .names = options.names};
  SLUICE_RETURN_IF_ERROR(place(question, plan));
  SLUICE_RETURN_IF_ERROR(place_in_room(question, plan));
  if (!plan.stripes.paths.empty()) {
    plan.drive_tbw = rated_tbw(options.machine, drive_bytes(plan, options));
    plan.drive_tbw_assumed = !options.machine.drive_tbw;
  }
  SLUICE_RETURN_IF_ERROR(hint_at_a_drive(question, plan));
  SLUICE_RETURN_IF_ERROR(hint_at_smaller_waves(question, plan));
  SLUICE_RETURN_IF_ERROR(hint_at_a_smaller_batch(question, plan));
  if (options.with_what_ifs && plan.placement.fits) {
    SLUICE_ASSIGN_OR_RETURN(plan.what_if, what_ifs(question, plan));
  }
  if (options.with_growth && plan.placement.fits && !plan.ranks.is_alone()) {
    SLUICE_ASSIGN_OR_RETURN(
        plan.growth, rank_growth({.config = config, .model = model, .on_gpu = on_gpu}, plan));
  }
  return plan;
}

}  // namespace sluice::engine
