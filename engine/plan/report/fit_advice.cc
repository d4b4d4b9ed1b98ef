// Why a plan does not fit, and what would make it fit.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/plan/report/nvme_hint.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/report/plan_words.h"

namespace sluice::engine {
namespace {

using Change = offload::FitHint::Change;

bool is_activations(const MemoryLine& line) {
  return line.use == MemoryUse::kActivations || line.use == MemoryUse::kUnitInputs;
}

// The part of the tier that lacks most.
MemoryLine largest_part(const RunPlan& plan) {
  const offload::TierBytes& missing = plan.placement.missing;
  const std::vector<MemoryLine>* lines = &plan.memory.nvme;
  if (missing.cpu > 0 && missing.cpu >= missing.nvme) lines = &plan.memory.host;
  if (missing.gpu > 0 && missing.gpu >= std::max(missing.cpu, missing.nvme))
    lines = &plan.memory.gpu;
  MemoryLine largest;
  for (const MemoryLine& line : *lines)
    if (line.bytes > largest.bytes) largest = line;
  return largest;
}

// Advice that comes earlier is nearer.
struct Advice {
  int rank = 0;
  std::string text;
};

constexpr int kBudgetRank = 0;   // costs nothing: the machine has it
constexpr int kLargestRank = 1;  // makes the largest part smaller
constexpr int kOtherRank = 2;
constexpr int kMachineRank = 3;  // takes another machine

// `before` and `behind` are what the machine needs, around so many GiB.
Advice budget_advice(const char* key, const char* before, const char* behind, std::uint64_t bytes,
                     std::uint64_t available) {
  if (available == 0 || bytes <= available)
    return {kBudgetRank, std::string(key) + " " + gib_up_text(bytes)};
  return {kMachineRank, std::string(before) + " " + gib_up_text(bytes) + " GiB" + behind +
                            " (there are " + format_bytes(available) + ")"};
}

// Whether a control group leaves less than the machine has, and this machine's RAM is planned with.
bool is_in_small_group(const RunPlan& plan) {
  const MachineFacts& facts = plan.facts;
  if (!facts.cgroup_limit_bytes || host_free(facts) != facts.cgroup_bytes) return false;
  return plan.available.cpu == plan.ranks.share_of(*facts.cgroup_bytes);
}

std::string micro_batch_text(const config::BatchSizes& batch, std::int64_t micro) {
  return "train_micro_batch_size_per_gpu " + std::to_string(micro) +
         " with gradient_accumulation_steps " +
         std::to_string(batch.accumulation * (batch.micro / micro));
}

Advice advice_of(const config::Config& config, const RunPlan& plan, const offload::FitHint& hint,
                 bool activations_are_largest) {
  const offload::TierBytes& budget = plan.input.budget;
  const offload::TierBytes& beside = plan.beside.at_most;
  const int activations = activations_are_largest ? kLargestRank : kOtherRank;
  const int state = activations_are_largest ? kOtherRank : kLargestRank;
  const bool in_group = is_in_small_group(plan);
  switch (hint.change) {
    case Change::kMoreGpu:
      return budget_advice(
          "budget.gpu_gib", "a GPU with", "",
          static_cast<std::uint64_t>(
              static_cast<double>(budget.gpu + beside.gpu + hint.more_bytes) / (1 - kGpuSlack)),
          plan.available.gpu);
    case Change::kMoreCpu:
      return budget_advice("budget.cpu_gib",
                           in_group ? "a memory limit of" : "a machine with RAM of",
                           in_group ? " for this container or job" : "",
                           plan.ranks.of_host(budget.cpu + beside.cpu + hint.more_bytes),
                           plan.ranks.of_host(plan.available.cpu));
    case Change::kMoreNvme:
      return {state, more_nvme_text(config, plan, hint.more_bytes)};
    case Change::kRecompute:
      return {activations, "placement.recompute \"on\""};
    case Change::kInputsToCpu:
      return {activations, "placement.boundaries_to_cpu \"on\""};
    case Change::kOptimizerAnywhere:
      return {state,
              std::string("zero_optimization.offload_optimizer.device \"auto\"") +
                  (config.placement.optimizer_fractions ? " without placement.optimizer_fractions"
                                                        : "")};
    case Change::kParamsAnywhere:
      return {state, "zero_optimization.offload_param.device \"auto\""};
    case Change::kSmallerWaves:
      return {activations,
              "placement.wave_micro_batches " + std::to_string(hint.wave_micro_batches)};
    case Change::kSmallerMicroBatch:
      return {activations, micro_batch_text(config.batch, hint.micro_batch)};
    case Change::kShorterSequences:
      return {activations, "data.sequence_length " + std::to_string(hint.sequence_tokens)};
  }
  return {};
}

}  // namespace

std::string does_not_fit(const config::Config& config, const RunPlan& plan) {
  const offload::TierBytes& missing = plan.placement.missing;
  std::string text = "this run does not fit";
  if (!plan.ranks.is_alone())
    text += ", counted for each of " + std::to_string(plan.ranks.world) + " ranks";
  text += ':';
  const auto add = [&](std::uint64_t bytes, const std::string& tier) {
    if (bytes > 0)
      text +=
          (text.back() == ':' ? " " : ", ") + format_bytes(bytes) + " of " + tier + " are missing";
  };
  add(missing.gpu, "GPU memory");
  add(missing.cpu, "host memory");
  add(missing.nvme, "NVMe");
  const MemoryLine largest = largest_part(plan);
  if (largest.bytes > 0)
    text += "; most of it goes to " + largest.what + ", " + format_bytes(largest.bytes);
  std::vector<Advice> all;
  all.reserve(plan.placement.hints.size());
  for (const offload::FitHint& hint : plan.placement.hints)
    all.push_back(advice_of(config, plan, hint, is_activations(largest)));
  if (all.empty())
    return text +
           ". No single change is enough: take a smaller model, shorter sequences "
           "(data.sequence_length) or a larger machine";
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.rank < b.rank; });
  text += ". It would with ";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 == all.size() ? ", or " : ", ";
    text += all[i].text;
  }
  return text;
}

}  // namespace sluice::engine
