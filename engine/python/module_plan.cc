#include "engine/python/module_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/plan/report/plan_report.h"
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/nvme_folders.h"

namespace sluice::engine {
namespace {

// Names are the module's own, everywhere.
constexpr ParameterNames kModuleNames = {};

// Passes come micro-batch by micro-batch.
Result<MemoryPlan> plan_trained(const config::Config& config, const ModuleLayout& layout,
                                const ModulePlanOptions& options) {
  return plan_memory(config, layout.trained(),
                     {.purpose = RunPurpose::kTraining,
                      .on_gpu = uses_cuda(config),
                      .places = options.places.places,
                      .block_slots = options.places.block_slots,
                      .wave_micro_batches = 1,
                      .ranks = options.ranks,
                      .names = &kModuleNames,
                      .keeps_sums = !layout.is_family(),
                      .nvme_weights = options.places.nvme_weights});
}

// Nothing but parameters that come and go; each rank has all of them.
Result<MemoryPlan> plan_frozen(const config::Config& config, const ModuleLayout& layout,
                               const offload::RankPart& ranks) {
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_memory(config, layout.frozen(),
                                                       {.purpose = RunPurpose::kEvaluation,
                                                        .on_gpu = uses_cuda(config),
                                                        .names = &kModuleNames}));
  plan.params.options.store.run += "-frozen";
  if (ranks.world > 1) plan.params.options.store.run += "-" + std::to_string(ranks.rank);
  plan.params.options.store.label = "frozen parameters";
  return plan;
}

// What is frozen takes its part of the same tiers.
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

// With as many tokens in a row as are assumed where nothing is said.
config::Config with_tokens(config::Config config) {
  constexpr std::int64_t kTokens = 1024;
  if (config.data.sequence_tokens <= 0) config.data.sequence_tokens = kTokens;
  return config;
}

// Whether the configuration leaves something to the planner, and there is more than RAM to choose.
bool has_choice(const config::Config& config) {
  const bool open = config.zero.offload_param.device == config::OffloadDevice::kAuto ||
                    (config.zero.offload_optimizer.device == config::OffloadDevice::kAuto &&
                     !config.placement.optimizer_fractions);
  return open && (uses_cuda(config) || !nvme_folders(config).empty());
}

// A block of a transformer has about 12 h^2 parameters, and keeps 34 h bytes of a token in 16 bits
// (Korthikanti et al. 2022, without the attention's matrix) where each of its functions is one; of
// PyTorch's own functions it is about 60. What is outside of blocks is taken for an embedding and
// its head, whose logits are there in 16 bits, and in fp32 for the loss, its gradient and between.
std::uint64_t kept_by_autograd(const config::Config& config, const ModuleLayout& layout) {
  constexpr double kBlockFactor = 12;
  constexpr double kBytesOfToken = 60;
  constexpr double kLogitBytes = 18;
  const double tokens =
      static_cast<double>(config.batch.micro) * static_cast<double>(config.data.sequence_tokens);
  const double width = config.precision == config::Precision::kFp32 ? 2 : 1;
  double bytes = 0;
  double widest = 1;
  for (int unit = 1; unit < layout.units(); ++unit) {
    const auto elements = static_cast<double>(layout.trained().layout(unit).elements +
                                              layout.frozen().layout(unit).elements);
    const double hidden = std::sqrt(elements / kBlockFactor);
    widest = std::max(widest, hidden);
    bytes += kBytesOfToken * hidden * width * tokens;
  }
  const auto outside =
      static_cast<double>(layout.trained().layout(0).elements + layout.frozen().layout(0).elements);
  bytes += kLogitBytes * width * tokens * outside / widest;
  return static_cast<std::uint64_t>(bytes);
}

struct Beside {
  offload::TierBytes bytes;
  std::vector<std::string> assumptions;
};

Beside beside_of(const config::Config& config, const ModuleLayout& layout,
                 const std::optional<MemoryPlan>& frozen) {
  constexpr double kMostOfRoom = 0.6;  // the rest is worth trying
  Beside made;
  if (frozen) made.bytes = parameter_bytes(*frozen);
  const bool on_gpu = uses_cuda(config);
  const MachineFacts facts = machine_facts(config);
  std::uint64_t kept = kept_by_autograd(config, layout);
  const auto room = on_gpu ? gpu_room(config.budget, facts) : host_room(config.budget, facts);
  if (room)
    kept = std::min(kept, static_cast<std::uint64_t>(kMostOfRoom * static_cast<double>(*room)));
  (on_gpu ? made.bytes.gpu : made.bytes.cpu) += kept;
  const std::string rows = std::to_string(config.batch.micro) + " x " +
                           std::to_string(config.data.sequence_tokens) + " tokens";
  made.assumptions = {
      "a micro-batch is taken to have " + rows +
          " (train_micro_batch_size_per_gpu and data.sequence_length), each of which is multiplied "
          "with every parameter once",
      "autograd is taken to keep " + format_bytes(kept) +
          " between forward and backward, as a transformer without checkpointing would; so much " +
          (on_gpu ? "of the GPU" : "RAM") + " is left free"};
  return made;
}

Result<RunPlan> ask_planner(const config::Config& given, const ModuleLayout& layout,
                            const std::optional<MemoryPlan>& frozen,
                            const ModulePlanOptions& options,
                            std::vector<std::string>& assumptions) {
  const config::Config config = with_tokens(given);
  Beside beside = beside_of(config, layout, frozen);
  beside.bytes.cpu += options.beside_bytes;
  assumptions = std::move(beside.assumptions);
  const DescribedModel described{layout.trained(), kModuleNames, beside.bytes};
  return plan_run(config, {.cache_path = options.cache_path,
                           .refresh = options.refresh,
                           .unix_s = options.unix_s,
                           .machine = {},
                           .on_progress = options.on_progress,
                           .ranks = {},
                           .link = {},
                           .described = &described});
}

// Whether gradients may go to the drives so that the rest fits in RAM.
bool may_move_gradients(const config::Config& config, const offload::RankPart& ranks) {
  return config.placement.gradients_to_nvme == Tristate::kAuto && !uses_cuda(config) &&
         ranks.world == 1 && config.run.lanes == 1 && config.run.rounds == 1 &&
         !config.gradient_nvme_paths().empty();
}

config::Config with_gradients_on_nvme(config::Config config) {
  config.placement.gradients_to_nvme = Tristate::kOn;
  return config;
}

bool fits_in_ram(const config::Config& config, const MemoryPlan& plan,
                 const std::optional<MemoryPlan>& frozen, std::uint64_t beside_bytes) {
  const auto room = host_room(config.budget, machine_facts(config));
  const std::uint64_t of_frozen = frozen ? parameter_bytes(*frozen).cpu : 0;
  return !room || plan.host_bytes() + of_frozen + beside_bytes <= *room;
}

Result<MemoryPlan> plan_as_stated(const config::Config& config, const ModuleLayout& layout,
                                  const std::optional<MemoryPlan>& frozen,
                                  const ModulePlanOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan plan, plan_trained(config, layout, options));
  if (!may_move_gradients(config, options.ranks) ||
      fits_in_ram(config, plan, frozen, options.beside_bytes))
    return plan;
  return plan_trained(with_gradients_on_nvme(config), layout, options);
}

Result<RunPlan> plan_by_planner(const config::Config& config, const ModuleLayout& layout,
                                const std::optional<MemoryPlan>& frozen,
                                const ModulePlanOptions& options,
                                std::vector<std::string>& assumptions) {
  SLUICE_ASSIGN_OR_RETURN(RunPlan plan, ask_planner(config, layout, frozen, options, assumptions));
  if (!plan.placement.fits && may_move_gradients(config, options.ranks)) {
    std::vector<std::string> of_moved;
    SLUICE_ASSIGN_OR_RETURN(RunPlan moved, ask_planner(with_gradients_on_nvme(config), layout,
                                                       frozen, options, of_moved));
    if (moved.placement.fits) {
      plan = std::move(moved);
      assumptions = std::move(of_moved);
    }
  }
  if (plan.memory.gradients)
    assumptions.emplace_back(
        "gradients go to the drives and come back for the update; the predicted time does not "
        "count that");
  return plan;
}

}  // namespace

Result<ModulePlan> plan_module(const config::Config& config, const ModuleLayout& layout,
                               const ModulePlanOptions& options) {
  ModulePlan plan;
  if (layout.has_frozen()) {
    SLUICE_ASSIGN_OR_RETURN(plan.frozen, plan_frozen(config, layout, options.ranks));
  }
  if (has_choice(config) && !layout.is_family() && options.ranks.world == 1) {
    SLUICE_ASSIGN_OR_RETURN(
        RunPlan found, plan_by_planner(config, layout, plan.frozen, options, plan.assumptions));
    if (!found.placement.fits) return Error(ErrorCode::kOutOfMemory, does_not_fit(config, found));
    plan.trained = std::move(found.memory);
    plan.predicted_step_s = found.placement.prediction.step_s;
    plan.prediction = prediction_json(found);
  } else {
    SLUICE_ASSIGN_OR_RETURN(plan.trained, plan_as_stated(config, layout, plan.frozen, options));
  }
  if (plan.frozen) add_frozen_lines(*plan.frozen, plan.trained);
  return plan;
}

Result<RunPlan> plan_run_of_module(const config::Config& config, const ModuleLayout& layout,
                                   const ModulePlanOptions& options,
                                   std::vector<std::string>& assumptions) {
  std::optional<MemoryPlan> frozen;
  if (layout.has_frozen()) {
    SLUICE_ASSIGN_OR_RETURN(frozen, plan_frozen(config, layout, options.ranks));
  }
  SLUICE_ASSIGN_OR_RETURN(RunPlan plan,
                          plan_by_planner(config, layout, frozen, options, assumptions));
  if (frozen) add_frozen_lines(*frozen, plan.memory);
  return plan;
}

}  // namespace sluice::engine
