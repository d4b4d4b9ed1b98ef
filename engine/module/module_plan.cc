#include "engine/module/module_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aio/units.h"
#include "engine/budget/gradient_plan.h"
#include "engine/device/gpu.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/shared_placement.h"
#include "engine/preflight/host_shares.h"
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/stored_state.h"

namespace sluice::engine {
namespace {

// The values for one rank's plan.
struct OfRank {
  config::Config config;  // with this rank's budget
  offload::RankPart part;
  bool on_gpu = false;
};

// Plans the trained parameters, with one micro-batch at a time.
Result<MemoryPlan> plan_trained(const OfRank& rank, const ModuleLayout& layout,
                                const std::optional<SharedPlacement>& places,
                                bool moves_gradients = false) {
  PlanOptions options{
      .on_gpu = rank.on_gpu, .ranks = rank.part, .moves_gradients = moves_gradients};
  if (places) {
    SLUICE_ASSIGN_OR_RETURN(options, places->options(layout.trained(), rank.part, rank.on_gpu));
  }
  options.wave_micro_batches = 1;
  options.names = &kModuleNames;
  options.keeps_sums = !layout.is_family();
  return plan_memory(rank.config, layout.trained(), options);
}

// Plans the frozen parameters, which are only streamed; each rank has all of them.
Result<MemoryPlan> plan_frozen(const OfRank& rank, const ModuleLayout& layout) {
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_memory(rank.config, layout.frozen(),
                                                       {.purpose = RunPurpose::kEvaluation,
                                                        .on_gpu = rank.on_gpu,
                                                        .names = &kModuleNames}));
  plan.params.options.store.run += "-frozen";
  if (rank.part.world > 1) plan.params.options.store.run += "-" + std::to_string(rank.part.rank);
  plan.params.options.store.label = "frozen parameters";
  return plan;
}

// Adds the frozen parameters' memory on the same tiers.
void add_frozen_lines(const MemoryPlan& frozen, MemoryPlan& plan) {
  const auto add = [](const std::vector<MemoryLine>& from, std::vector<MemoryLine>& to) {
    for (MemoryLine line : from) {
      if (line.use != MemoryUse::kParameters || line.bytes == 0) continue;
      line.what = "frozen " + line.what;
      to.push_back(std::move(line));
    }
  };
  add(frozen.host, plan.host);
  add(frozen.gpu, plan.gpu);
  add(frozen.nvme, plan.nvme);
}

offload::TierBytes parameter_bytes(const MemoryPlan& plan) {
  const auto sum = [](const std::vector<MemoryLine>& lines) {
    std::uint64_t bytes = 0;
    for (const MemoryLine& line : lines)
      if (line.use == MemoryUse::kParameters) bytes += line.bytes;
    return bytes;
  };
  return {.gpu = sum(plan.gpu), .cpu = sum(plan.host), .nvme = sum(plan.nvme)};
}

config::Config with_tokens(config::Config config) {
  if (config.data.sequence_tokens <= 0) config.data.sequence_tokens = kAssumedTokens;
  return config;
}

// Logits per token: the row count of the matrix with the most rows.
double logits(const ModuleLayout& layout) {
  std::int64_t most = 0;
  for (int unit = 0; unit < layout.units(); ++unit)
    for (const ModuleParameter& it : layout.described(unit).parameters)
      if (it.shape.size() == 2) most = std::max(most, it.shape.front());
  return static_cast<double>(most);
}

// A transformer block has about 12 h^2 parameters. With fused functions it saves 34 h bytes per
// token in 16 bits (Korthikanti et al. 2022, without the attention matrix); with PyTorch's own
// functions it is about 60 h. With checkpointing each block saves its input, and one block at a
// time has all of the rest. The matrix with the most rows is assumed to be a head. Its logits are
// counted in 16 bits, and in fp32 for the loss, its gradient and an intermediate.
std::uint64_t kept_by_autograd(const config::Config& config, const ModuleLayout& layout,
                               double checkpointed) {
  constexpr double kBlockFactor = 12;
  constexpr double kBytesOfToken = 60;
  constexpr double kInputBytes = 2;
  constexpr double kLogitBytes = 18;
  const double tokens =
      static_cast<double>(config.batch.micro) * static_cast<double>(config.data.sequence_tokens);
  const double width = config.precision == config::Precision::kFp32 ? 2 : 1;
  double hiddens = 0;
  double widest = 1;
  for (int unit = 1; unit < layout.units(); ++unit) {
    const auto elements = static_cast<double>(layout.trained().layout(unit).elements +
                                              layout.frozen().layout(unit).elements);
    const double hidden = std::sqrt(elements / kBlockFactor);
    widest = std::max(widest, hidden);
    hiddens += hidden;
  }
  double of_token = (1 - checkpointed) * kBytesOfToken * hiddens + kLogitBytes * logits(layout);
  if (checkpointed > 0) of_token += checkpointed * kInputBytes * hiddens + kBytesOfToken * widest;
  return static_cast<std::uint64_t>(width * tokens * of_token);
}

struct OutsideEstimate {
  OutsideMemory taken;
  std::uint64_t kept = 0;  // saved by autograd; included in `taken`, like the next
  std::uint64_t copy = 0;
  std::vector<std::string> assumptions;
};

// A question to the planner, with its inputs.
struct Asked {
  const config::Config& config;  // of a host
  const ModuleLayout& layout;
  const std::optional<MemoryPlan>& frozen;
  const ModulePlanOptions& options;

  bool on_gpu() const { return options.asked.machine.describes_gpu() || uses_cuda(config); }
};

// The memory available to one rank.
std::optional<std::uint64_t> room_of(const Asked& it) {
  const config::Budget budget = planned_budget(it.config.budget, it.options.asked.machine);
  const MachineFacts facts = machine_facts(it.config);
  const int ranks = it.options.asked.ranks.local_world;
  return it.on_gpu() ? gpu_room(budget, facts)
                     : host_room(budget_of_rank(budget, ranks), facts_of_rank(facts, ranks));
}

OutsideEstimate outside_estimate(const Asked& it) {
  constexpr double kMostOfRoom = 0.6;  // a run is worth trying with the rest
  OutsideEstimate made;
  const double checkpointed = it.options.checkpointed;
  const std::uint64_t most = kept_by_autograd(it.config, it.layout, checkpointed);
  made.kept = most;
  if (const auto room = room_of(it))
    made.kept =
        std::min(most, static_cast<std::uint64_t>(kMostOfRoom * static_cast<double>(*room)));
  made.copy = checkpoint_copy_bytes(it.config, it.layout.trained(), it.options.asked.ranks.world);
  offload::TierBytes fixed;
  if (it.frozen) fixed = parameter_bytes(*it.frozen);
  fixed.cpu += made.copy;
  made.taken = {.bytes = fixed, .at_most = fixed};
  (it.on_gpu() ? made.taken.bytes.gpu : made.taken.bytes.cpu) += made.kept;
  (it.on_gpu() ? made.taken.at_most.gpu : made.taken.at_most.cpu) += most;
  const std::string rows = std::to_string(it.config.batch.micro) + " x " +
                           std::to_string(it.config.data.sequence_tokens) + " tokens";
  const char* const as = checkpointed == 0  ? "without checkpointing"
                         : checkpointed < 1 ? "with some blocks recomputed in backward"
                                            : "with blocks recomputed in backward";
  made.assumptions = {
      "a micro-batch is assumed to have " + rows +
          " (train_micro_batch_size_per_gpu and data.sequence_length), each of which is multiplied "
          "with every parameter once",
      "autograd is assumed to keep " + format_bytes(made.kept) +
          " between forward and backward, as a transformer " + as + " would; this much " +
          (it.on_gpu() ? "of the GPU" : "RAM") + " is left free"};
  return made;
}

struct Planned {
  RunPlan run;
  OutsideEstimate outside;
};

// Adds the run's memory outside of the plan, for people to read.
void add_outside_lines(const Asked& it, const OutsideEstimate& outside, MemoryPlan& plan) {
  if (it.frozen) add_frozen_lines(*it.frozen, plan);
  if (outside.copy > 0) plan.host.push_back(checkpoint_copy_line(outside.copy));
  (it.on_gpu() ? plan.gpu : plan.host)
      .push_back({"activations kept by autograd (assumed)", MemoryUse::kActivations, outside.kept});
}

Result<Planned> plan_by_planner(const Asked& given) {
  Planned planned;
  const config::Config whole = with_tokens(given.config);
  planned.outside = outside_estimate({whole, given.layout, given.frozen, given.options});
  const DescribedModel described{given.layout.trained()};
  PlanRunOptions asked = given.options.asked;
  asked.described = &described;
  asked.names = &kModuleNames;
  asked.outside = planned.outside.taken;
  SLUICE_ASSIGN_OR_RETURN(planned.run, plan_run(whole, asked));
  return planned;
}

bool fits_in_ram(const config::Config& config, const MemoryPlan& plan,
                 const std::optional<MemoryPlan>& frozen, std::uint64_t outside_bytes) {
  const auto room = host_room(config.budget, machine_facts(config));
  const std::uint64_t of_frozen = frozen ? parameter_bytes(*frozen).cpu : 0;
  return !room || plan.host_bytes() + of_frozen + outside_bytes <= *room;
}

Result<MemoryPlan> plan_as_stated(const OfRank& rank, const ModuleLayout& layout,
                                  const std::optional<MemoryPlan>& frozen,
                                  const std::optional<SharedPlacement>& places,
                                  std::uint64_t outside_bytes) {
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_trained(rank, layout, places));
  const RunSpec spec{.config = rank.config,
                     .model = layout.trained(),
                     .on_gpu = rank.on_gpu,
                     .ranks = rank.part,
                     .names = &kModuleNames};
  if (places || !may_move_gradients(spec) || fits_in_ram(rank.config, plan, frozen, outside_bytes))
    return plan;
  return plan_trained(rank, layout, places, /*moves_gradients=*/true);
}

// The planner's result that the run uses.
Result<RunPlan> fitting_plan(const Asked& it, std::vector<std::string>& assumptions) {
  SLUICE_ASSIGN_OR_RETURN(Planned planned, plan_by_planner(it));
  if (!planned.run.placement.fits) {
    add_outside_lines(it, planned.outside, planned.run.memory);
    return Error(ErrorCode::kOutOfMemory,
                 does_not_fit(it.config, planned.run) + smaller_units_hint(it.layout));
  }
  assumptions = std::move(planned.outside.assumptions);
  return std::move(planned.run);
}

// The first rank asks the planner, and all ranks use its result.
Status plan_by_first(const config::Config& config, const ModuleLayout& layout, const OfRank& rank,
                     const ModulePlanOptions& given, ModulePlan& plan) {
  ModulePlanOptions options = given;
  options.asked.ranks = given.link->topology();
  SLUICE_ASSIGN_OR_RETURN(
      FirstRankPlan of_first,
      first_rank_plan(
          *given.link, config,
          {.cache_path = given.asked.cache_path,
           .refresh = given.asked.refresh,
           .unix_s = given.asked.unix_s},
          [&](const std::optional<MeasuredLink>& link) {
            options.asked.link = link;
            return fitting_plan({config, layout, plan.frozen, options}, plan.said.assumptions);
          }));
  if (of_first.plan) {
    plan.said.predicted_step_s = of_first.plan->placement.prediction.step_s;
    plan.said.prediction = prediction_json(*of_first.plan);
    plan.trained = std::move(of_first.plan->memory);
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(plan.trained, plan_trained(rank, layout, of_first.places));
  return {};
}

}  // namespace

bool has_choice(const config::Config& config, bool on_gpu) {
  const bool open = config.zero.offload_param.device == config::OffloadDevice::kAuto ||
                    (config.zero.offload_optimizer.device == config::OffloadDevice::kAuto &&
                     !config.placement.optimizer_fractions);
  return (open || config.budget.nvme_tb_per_day) && (on_gpu || !nvme_folders(config).empty());
}

std::uint64_t checkpoint_copy_bytes(const config::Config& config, const ModelLayout& model,
                                    int ranks) {
  if (config.run.checkpoint_background != Tristate::kOn) return 0;
  const RunSpec spec{.config = config, .model = model};
  return RunCheckpoints::image_bytes(model, stored_moments(spec.types()), {.world = ranks});
}

MemoryLine checkpoint_copy_line(std::uint64_t bytes) {
  return {"checkpoint, copy of the state", MemoryUse::kCheckpointCopy, bytes};
}

// The largest unit's parameters and sums are on the GPU at once. That unit may be the one outside
// of all blocks, with a large vocabulary's embedding and head.
std::string smaller_units_hint(const ModuleLayout& layout) {
  constexpr std::uint64_t kMuchLarger = 2;
  const auto elements = [&](int unit) {
    return layout.trained().layout(unit).elements + layout.frozen().layout(unit).elements;
  };
  std::uint64_t block = 0;
  for (int unit = 1; unit < layout.units(); ++unit) block = std::max(block, elements(unit));
  if (block == 0 || elements(0) <= kMuchLarger * block) return {};
  std::vector<std::string> modules;
  for (const ModuleParameter& it : layout.described(0).parameters) {
    std::uint64_t size = 1;
    for (const std::int64_t extent : it.shape) size *= static_cast<std::uint64_t>(extent);
    const std::size_t dot = it.name.rfind('.');
    if (size > block / kMuchLarger && dot != std::string::npos)
      modules.push_back('"' + it.name.substr(0, dot) + '"');
  }
  if (modules.size() < 2) return {};
  std::string names = modules.front();
  for (std::size_t i = 1; i < modules.size(); ++i) names += ", " + modules[i];
  return ". The parameters outside of blocks are the largest unit: units= may name parts of it in "
         "addition to the blocks (" +
         names + ")";
}

Result<ModulePlan> plan_module(const config::Config& config, const ModuleLayout& layout,
                               const ModulePlanOptions& options) {
  OfRank rank{.config = config, .on_gpu = uses_cuda(config)};
  rank.part = options.link->topology().part(options.link->rank());
  rank.config.budget = budget_of_rank(config.budget, options.link->world_size(ProcessGroup::kNode));
  const std::uint64_t copy = checkpoint_copy_bytes(config, layout.trained(), rank.part.world);
  ModulePlan plan;
  if (layout.has_frozen()) {
    SLUICE_ASSIGN_OR_RETURN(plan.frozen, plan_frozen(rank, layout));
  }
  if (has_choice(config, rank.on_gpu) && !layout.is_family()) {
    SLUICE_RETURN_IF_ERROR(plan_by_first(config, layout, rank, options, plan));
  } else {
    SLUICE_ASSIGN_OR_RETURN(plan.trained,
                            plan_as_stated(rank, layout, plan.frozen, options.places.places, copy));
    plan.said = options.places;
  }
  if (plan.frozen) add_frozen_lines(*plan.frozen, plan.trained);
  if (copy > 0) plan.trained.host.push_back(checkpoint_copy_line(copy));
  return plan;
}

Result<RunPlan> plan_run_of_module(const config::Config& config, const ModuleLayout& layout,
                                   const ModulePlanOptions& options,
                                   std::vector<std::string>& assumptions) {
  std::optional<MemoryPlan> frozen;
  const Asked it{config, layout, frozen, options};
  if (layout.has_frozen()) {
    SLUICE_ASSIGN_OR_RETURN(
        frozen,
        plan_frozen({.config = config, .part = options.asked.ranks.part(0), .on_gpu = it.on_gpu()},
                    layout));
  }
  SLUICE_ASSIGN_OR_RETURN(Planned planned, plan_by_planner(it));
  add_outside_lines(it, planned.outside, planned.run.memory);
  assumptions = std::move(planned.outside.assumptions);
  return std::move(planned.run);
}

}  // namespace sluice::engine
