#include "engine/plan/run_plan.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "aio/nvme_health.h"
#include "aio/real_file_system.h"
#include "aio/result.h"
#include "aio/units.h"
#include "engine/plan/described_machine.h"
#include "engine/plan/drive_wear.h"
#include "engine/plan/fp8_gain.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/plan/longest_sequence.h"
#include "engine/plan/placed_run.h"
#include "engine/plan/planner_input.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/preflight/shared_file_systems.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

constexpr double kDriveMargin = 0.05;

// Paths of one file system share its free space equally.
std::vector<std::uint64_t> rooms_of(aio::FileSystem& files, const std::vector<std::string>& paths,
                                    const FileSystemOf& file_system_of) {
  std::vector<std::uint64_t> rooms(paths.size(), 0);
  for (const auto& system : file_systems_of_paths(files, paths, file_system_of)) {
    const auto free = files.free_bytes(system.folder);
    if (!free.ok()) continue;
    const double part = (1 - kDriveMargin) / static_cast<double>(system.paths.size());
    for (const std::size_t i : system.paths)
      rooms[i] = static_cast<std::uint64_t>(part * static_cast<double>(*free));
  }
  return rooms;
}

}  // namespace

std::uint64_t NvmeStripes::room() const {
  return striped ? swap::striped_room(room_bytes, weights)
                 : std::accumulate(room_bytes.begin(), room_bytes.end(), std::uint64_t{0});
}

NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files, const FileSystemOf& file_system_of) {
  NvmeStripes stripes{.paths = nvme_folders(config),
                      .striped = config.budget.nvme_paths.size() > 1};
  if (files != nullptr) stripes.room_bytes = rooms_of(*files, stripes.paths, file_system_of);
  stripes.weights.assign(stripes.paths.size(), 1);
  if (!stripes.striped) return stripes;
  const auto& named = config.placement.nvme_weights;
  if (named && !named->empty()) stripes.weights = *named;
  // Described drives have no individual speeds.
  if (!named && machine.paths.size() == stripes.paths.size()) {
    for (std::size_t i = 0; i < machine.paths.size(); ++i)
      stripes.weights[i] = machine.paths[i].weight;
  }
  return stripes;
}

std::uint64_t free_for_room(std::uint64_t room_bytes) {
  return static_cast<std::uint64_t>(static_cast<double>(room_bytes) / (1 - kDriveMargin));
}

std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes) {
  if (!stripes.striped || stripes.room_bytes.empty() || stripes.room() >= needed_bytes)
    return std::nullopt;
  return swap::weights_within(stripes.room_bytes, stripes.weights, needed_bytes);
}

bool may_restripe(const config::Config& config, const NvmeStripes& stripes) {
  return stripes.striped && !config.placement.nvme_weights && !stripes.room_bytes.empty();
}

void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine) {
  if (machine.paths.size() == weights.size()) {
    const offload::DuplexRates before = machine.speeds.drives;
    machine.speeds.drives =
        with_other_weights(before, path_speeds(machine), stripes.weights, weights);
    machine.drives_when.estimated = true;
    for (std::size_t i = 0; i < weights.size(); ++i) machine.paths[i].weight = weights[i];
    stripes.slower_together = swap_bytes_per_s(machine.speeds.drives) < swap_bytes_per_s(before);
  }
  if (stripes.weights_before.empty()) stripes.weights_before = stripes.weights;
  stripes.weights = std::move(weights);
}

std::string restriped_text(const NvmeStripes& stripes) {
  if (stripes.weights_before.empty()) return "";
  return "stripes are distributed " + swap::to_text(stripes.weights) +
         " over budget.nvme_paths instead of " + swap::to_text(stripes.weights_before) +
         ", because a path lacks space for more" +
         (stripes.slower_together ? "; this makes the drives slower together" : "");
}

namespace {

using Change = offload::FitHint::Change;
using Hint = std::optional<offload::FitHint>;

// The input for another configuration; everything else is as placed.
Result<offload::PlannerInput> input_with(const PlanSubject& subject, const config::Config& config,
                                         const PlacedRun& placed) {
  return input_of(subject, config, placed.machine.report, placed.input.budget,
                  StepChoice::of(placed.input));
}

Result<bool> fits_with(const PlanSubject& subject, const config::Config& config,
                       const PlacedRun& placed) {
  SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input, input_with(subject, config, placed));
  return offload::leanest_placement(input).missing.total() == 0;
}

// If no path was named: the size of a drive that would make the run fit. The planner finds it for a
// run that has a small drive.
Result<Hint> a_drive(const PlanSubject& subject, const PlacedRun& placed) {
  if (!placed.machine.stripes.paths.empty()) return Hint();
  constexpr std::uint64_t kSmallDriveBytes = kGiB;
  config::Config config = subject.config;
  config.budget.nvme_paths = {"nvme"};
  offload::TierBytes budget = placed.input.budget;
  budget.nvme = kSmallDriveBytes;
  StepChoice choice = StepChoice::of(placed.input);
  for (const bool moves_gradients : {false, true}) {
    if (moves_gradients && !may_move_gradients(subject, config)) continue;
    choice.moves_gradients = moves_gradients;
    SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input,
                            input_of(subject, config, placed.machine.report, budget, choice));
    for (const offload::FitHint& hint : offload::fit_hints(input)) {
      if (hint.change != Change::kMoreNvme) continue;
      return Hint({.change = Change::kMoreNvme, .more_bytes = hint.more_bytes + kSmallDriveBytes});
    }
  }
  return Hint();
}

// If the configuration sets the size of waves: the largest smaller size with which the run fits.
Result<Hint> smaller_waves(const PlanSubject& subject, const PlacedRun& placed) {
  config::Config config = subject.config;
  std::int64_t& wave = config.placement.wave_micro_batches;
  wave = std::min(wave, config.batch.accumulation);
  while (wave > 1) {
    wave = (wave + 1) / 2;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kSmallerWaves, .wave_micro_batches = wave});
  }
  return Hint();
}

// Changes that reduce activations: the largest micro-batch with which the run fits, with the same
// tokens per step; or else the longest sequences.
Result<Hint> a_smaller_batch(const PlanSubject& subject, const PlacedRun& placed) {
  const config::BatchSizes& batch = subject.config.batch;
  for (std::int64_t micro = batch.micro / 2; micro >= 1; --micro) {
    if (batch.micro % micro != 0) continue;
    config::Config config = subject.config;
    config.batch.accumulation *= batch.micro / micro;
    config.batch.micro = micro;
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kSmallerMicroBatch, .micro_batch = micro});
  }
  if (subject.is_module) return Hint();  // the plan cannot shorten a module's sequences
  constexpr std::int64_t kShortest = 64;
  config::Config config = subject.config;
  std::int64_t& tokens = config.data.sequence_tokens;
  while ((tokens /= 2) >= kShortest) {
    SLUICE_ASSIGN_OR_RETURN(const bool fits, fits_with(subject, config, placed));
    if (fits) return Hint({.change = Change::kShorterSequences, .sequence_tokens = tokens});
  }
  return Hint();
}

// The planner's hints, and hints to change the drives, the waves or the batch. Empty: the run fits.
Result<std::vector<offload::FitHint>> fit_hints(const PlanSubject& subject,
                                                const PlacedRun& placed) {
  if (placed.placement.writes_too_much) return wear_hints(subject, placed);
  if (placed.placement.fits) return std::vector<offload::FitHint>();
  std::vector<offload::FitHint> hints = offload::fit_hints(placed.input);
  SLUICE_ASSIGN_OR_RETURN(const auto drive, a_drive(subject, placed));
  if (drive) {
    const auto behind = std::find_if(hints.begin(), hints.end(), [](const offload::FitHint& it) {
      return it.change > Change::kMoreNvme;
    });
    hints.insert(behind, *drive);
  }
  for (const auto hint : {smaller_waves, a_smaller_batch}) {
    SLUICE_ASSIGN_OR_RETURN(const auto found, hint(subject, placed));
    if (found) hints.push_back(*found);
  }
  return hints;
}

// Requires a run that fits.
Result<std::vector<offload::WhatIf>> what_ifs(const PlanSubject& subject, const PlacedRun& placed) {
  // A micro-batch with twice the tokens takes twice the time.
  const auto twice = [&](const offload::PlannerInput&) -> Result<offload::PlannerInput> {
    config::Config config = subject.config;
    config.batch.micro *= 2;
    PlacedRun slower = placed;
    for (UnitTimes::OfKind& it : slower.machine.report.units.kinds) {
      it.seconds.forward_s *= 2;
      it.seconds.recompute_s *= 2;
      it.seconds.backward_s *= 2;
    }
    return input_with(subject, config, slower);
  };
  SLUICE_ASSIGN_OR_RETURN(std::vector<offload::WhatIf> found, wear_what_ifs(subject, placed));
  SLUICE_ASSIGN_OR_RETURN(
      const auto others,
      offload::find_what_ifs(
          placed.input, placed.placement,
          {.more_ram_bytes = subject.ranks.share_of(offload::WhatIfOptions().more_ram_bytes),
           .twice_micro_batch = twice}));
  found.insert(found.end(), others.begin(), others.end());
  SLUICE_ASSIGN_OR_RETURN(const auto in_fp8, fp8_what_if(subject, placed));
  if (in_fp8) found.push_back(*in_fp8);
  offload::sort_what_ifs(found);
  return found;
}

std::optional<std::uint64_t> host_floor(const PlanSubject& subject, const PlacedRun& placed) {
  if (placed.machine.stripes.paths.empty()) return std::nullopt;
  StepChoice choice = StepChoice::of(placed.input);
  choice.moves_gradients |= may_move_gradients(subject, subject.config);
  offload::TierBytes budget = placed.input.budget;
  budget.cpu = 0;
  const auto input = input_of(subject, subject.config, placed.machine.report, budget, choice);
  if (!input.ok()) return std::nullopt;
  const offload::TierBytes missing = offload::leanest_placement(*input).missing;
  if (missing.gpu + missing.nvme > 0) return std::nullopt;
  return missing.cpu + subject.outside.bytes.cpu;
}

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

// The rated endurance of all drives together, as described or as the drives tell it.
std::optional<double> told_tbw(const DescribedMachine& machine,
                               const std::vector<std::string>& folders,
                               const PlanRunOptions& asked) {
  if (machine.drive_tbw || machine.is_elsewhere || machine.describes_drives() ||
      asked.files != nullptr)
    return machine.drive_tbw;
  const auto health = aio::nvme_health(folders);
  return health.ok() ? health->rated_tb : std::nullopt;
}

RunPlan plan_of(const PlanSubject& subject, PlacedRun placed) {
  const config::Config& config = subject.config;
  const std::string pinning = pinning_text(placed.machine.report);
  if (!pinning.empty()) placed.memory.notes.push_back(pinning);
  return {.memory = std::move(placed.memory),
          .input = std::move(placed.input),
          .placement = std::move(placed.placement),
          .machine = std::move(placed.machine.report),
          .facts = placed.machine.facts,
          .available = available_on(placed.machine, subject),
          .budget = placed.budget,
          .outside = subject.outside,
          .stripes = std::move(placed.machine.stripes),
          .parameters = subject.model.parameter_elements(),
          .active = subject.model.active_elements(),
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
    const auto rated = told_tbw(subject.machine, plan.stripes.paths, asked);
    plan.drive_tbw = rated.value_or(assumed_tbw(drive_bytes(subject, placed, asked)));
    plan.drive_tbw_assumed = !rated;
  }
  plan.host_floor_bytes = host_floor(subject, placed);
  SLUICE_ASSIGN_OR_RETURN(plan.hints, fit_hints(subject, placed));
  if (asked.with_longest_sequence && !subject.is_module) {
    SLUICE_ASSIGN_OR_RETURN(plan.longest_sequence, longest_sequence(subject, placed));
  }
  if (!plan.placement.fits) return plan;
  if (asked.with_what_ifs) {
    SLUICE_ASSIGN_OR_RETURN(plan.what_if, what_ifs(subject, placed));
  }
  if (asked.with_growth && plan.ranks.world > 1) {
    SLUICE_ASSIGN_OR_RETURN(plan.growth, rank_growth(subject, plan));
  }
  return plan;
}

namespace {

// Keeps the number of lanes per rank.
config::Config on_ranks(config::Config config, int before, int world) {
  config.run.lanes = config.run.lanes / before * world;
  return config;
}

// The budget of a rank in a group that may share its host among another number of ranks.
offload::TierBytes budget_on(const RunPlan& plan, const offload::Topology& ranks) {
  const offload::TierBytes& budget = plan.input.budget;
  return {.gpu = budget.gpu,
          .cpu = ranks.share_of(plan.ranks.of_host(budget.cpu)),
          .nvme = ranks.share_of(plan.ranks.of_host(budget.nvme))};
}

RankGrowth row_of(const RunPlan& plan, const offload::Topology& ranks,
                  const offload::PlacementPlan& placement) {
  RankGrowth row{.ranks = ranks, .fits = placement.fits};
  if (!placement.fits) return row;
  const offload::StepPrediction& step = placement.prediction;
  row.step_s = step.step_s;
  row.tokens_per_s =
      static_cast<double>(plan.tokens_per_step) / plan.ranks.world * ranks.world / step.step_s;
  row.link_exposed_s = step.link_exposed_s;
  row.bottleneck = step.bottleneck;
  return row;
}

// Linear growth means: as many tokens per rank as with the fewest ranks that fit.
void compare(std::vector<RankGrowth>& rows) {
  double of_rank = 0;
  for (RankGrowth& row : rows) {
    if (!row.fits) continue;
    const double own = row.tokens_per_s / row.ranks.world;
    if (of_rank == 0) of_rank = own;
    row.share_of_linear = own / of_rank;
  }
}

}  // namespace

std::vector<offload::Topology> growing_ranks(const offload::Topology& all) {
  std::vector<offload::Topology> groups;
  for (int ranks = 1; ranks < all.local_world; ranks *= 2)
    groups.push_back({.world = ranks, .local_world = ranks});
  for (int hosts = 1; hosts < all.hosts(); hosts *= 2)
    groups.push_back({.world = hosts * all.local_world, .local_world = all.local_world});
  groups.push_back(all);
  return groups;
}

Result<std::vector<RankGrowth>> rank_growth(const PlanSubject& subject, const RunPlan& plan) {
  std::vector<RankGrowth> rows;
  for (const offload::Topology& ranks : growing_ranks(plan.ranks)) {
    if (ranks == plan.ranks) {
      rows.push_back(row_of(plan, ranks, plan.placement));
      continue;
    }
    const config::Config config = on_ranks(subject.config, plan.ranks.world, ranks.world);
    SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input,
                            planner_input({.config = config,
                                           .model = subject.model,
                                           .machine = plan.machine,
                                           .on_gpu = subject.on_gpu,
                                           .budget = budget_on(plan, ranks),
                                           .wave_micro_batches = plan.input.step.waves.of_a_wave,
                                           .ranks = ranks,
                                           .moves_gradients = plan.memory.gradients.has_value()}));
    SLUICE_ASSIGN_OR_RETURN(const auto placement, offload::plan_placement(input));
    rows.push_back(row_of(plan, ranks, placement));
  }
  compare(rows);
  return rows;
}

}  // namespace sluice::engine
