// Why a plan does not fit, and which changes would make it fit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "aio/units.h"
#include "engine/config/config.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/report/plan_words.h"
#include "engine/plan/run_plan.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

// Whether the run would fit on the other paths alone.
bool fits_without(const config::Config& config, NvmeStripes stripes, std::size_t path,
                  std::uint64_t needed_bytes) {
  const auto at = static_cast<std::ptrdiff_t>(path);
  stripes.room_bytes.erase(stripes.room_bytes.begin() + at);
  stripes.weights.erase(stripes.weights.begin() + at);
  if (config.placement.nvme_weights)
    return swap::striped_room(stripes.room_bytes, stripes.weights) >= needed_bytes;
  return swap::weights_within(stripes.room_bytes, stripes.weights, needed_bytes).has_value();
}

// Text for paths that are too small for the share of their weights.
std::string more_at_full_paths(const config::Config& config, const NvmeStripes& stripes,
                               std::uint64_t needed_bytes) {
  const double all = std::accumulate(stripes.weights.begin(), stripes.weights.end(), 0.0);
  std::string full;
  std::string superfluous;
  for (std::size_t i = 0; i < stripes.paths.size(); ++i) {
    const auto share = static_cast<std::uint64_t>(
        std::ceil(static_cast<double>(needed_bytes) * stripes.weights[i] / all));
    if (stripes.room_bytes[i] >= share) continue;
    full += (full.empty() ? "" : ", ") + stripes.paths[i] + " has room for " +
            format_bytes(stripes.room_bytes[i]) + " of the " + format_bytes(share) +
            " that it needs";
    if (superfluous.empty() && fits_without(config, stripes, i, needed_bytes))
      superfluous = stripes.paths[i];
  }
  return "more space on NVMe (" + full + ": free some space there, " +
         (superfluous.empty() ? "" : "remove " + superfluous + " from budget.nvme_paths, ") +
         "or add a path on another drive to budget.nvme_paths)";
}

// Text for paths with one store each. The plan does not have each path's shortage.
std::string more_at_any_path(const NvmeStripes& stripes) {
  std::string rooms;
  for (std::size_t i = 0; i < stripes.paths.size(); ++i)
    rooms += (rooms.empty() ? "" : ", ") + stripes.paths[i] + " has room for " +
             format_bytes(stripes.room_bytes[i]);
  return "more space on NVMe (" + rooms +
         ": free some space there, or set budget.nvme_paths to folders with more space)";
}

// What the drives themselves lack for this many bytes; empty: nothing.
std::string more_on_drives(const config::Config& config, const NvmeStripes& stripes,
                           std::uint64_t needed_bytes) {
  if (stripes.room_bytes.empty() || stripes.room() >= needed_bytes) return "";
  if (config.budget.nvme_paths.empty()) return more_at_any_path(stripes);
  if (roomier_weights(stripes, needed_bytes)) {
    if (config.placement.nvme_weights) return "placement.nvme_weights \"auto\"";
    // The plan chooses these weights once budget.nvme_gib permits the bytes; otherwise it has
    // already tried them.
    if (config.budget.nvme_gib) return "";
  }
  return more_at_full_paths(config, stripes, needed_bytes);
}

// For a plan that would fit with this many more bytes on its NVMe paths: the end of the sentence
// "it would with ...". The text has budget.nvme_gib only if that limits the room; otherwise setting
// it would hide full drives until the run begins. If no path is named, the advice is to add one.
std::string more_nvme_text(const config::Config& config, const RunPlan& plan,
                           std::uint64_t more_bytes) {
  const std::uint64_t needed_bytes = plan.ranks.of_host(plan.input.budget.nvme + more_bytes);
  if (plan.stripes.paths.empty()) {
    return "a folder on a local drive with " + gib_up_text(free_for_room(needed_bytes)) +
           " GiB free (budget.nvme_paths)";
  }
  std::string drives = more_on_drives(config, plan.stripes, needed_bytes);
  const bool is_given = config.budget.nvme_gib || plan.stripes.room_bytes.empty();
  if (!is_given && !drives.empty()) return drives;
  return "budget.nvme_gib " + gib_up_text(needed_bytes) + (drives.empty() ? "" : " and " + drives);
}

using Change = offload::FitHint::Change;

bool is_activations(const MemoryLine& line) {
  return line.use == MemoryUse::kActivations || line.use == MemoryUse::kUnitInputs;
}

// The largest line of the tier with the largest shortage.
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

// Advice with a lower rank comes first.
struct Advice {
  int rank = 0;
  std::string text;
};

constexpr int kBudgetRank = 0;   // costs nothing: the machine has it
constexpr int kLargestRank = 1;  // reduces the largest part
constexpr int kOtherRank = 2;
constexpr int kMachineRank = 3;  // requires another machine

// `before` and `behind`: the text before and after the number of GiB that the machine needs.
Advice budget_advice(const char* key, const char* before, const char* behind, std::uint64_t bytes,
                     std::uint64_t available) {
  if (available == 0 || bytes <= available)
    return {kBudgetRank, std::string(key) + " " + gib_up_text(bytes)};
  return {kMachineRank, std::string(before) + " " + gib_up_text(bytes) + " GiB" + behind +
                            " (this one has " + format_bytes(available) + ")"};
}

// Whether a control group leaves less than the machine has, in a plan for this machine's RAM.
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
  const offload::TierBytes& outside = plan.outside.at_most;
  const int activations = activations_are_largest ? kLargestRank : kOtherRank;
  const int state = activations_are_largest ? kOtherRank : kLargestRank;
  const bool in_group = is_in_small_group(plan);
  switch (hint.change) {
    case Change::kMoreGpu:
      return budget_advice(
          "budget.gpu_gib", "a GPU with", "",
          static_cast<std::uint64_t>(
              static_cast<double>(budget.gpu + outside.gpu + hint.more_bytes) / (1 - kGpuSlack)),
          plan.available.gpu);
    case Change::kMoreCpu:
      return budget_advice("budget.cpu_gib", in_group ? "a memory limit of" : "a machine with",
                           in_group ? " for this container or job" : " of RAM",
                           plan.ranks.of_host(budget.cpu + outside.cpu + hint.more_bytes),
                           plan.ranks.of_host(plan.available.cpu));
    case Change::kMoreNvme:
      return {state, more_nvme_text(config, plan, hint.more_bytes)};
    case Change::kRecompute:
      return {activations, "placement.recompute \"on\""};
    case Change::kInputsToCpu:
      return {activations, "placement.unit_inputs_to_cpu \"on\""};
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
    case Change::kMoreAccumulation:
      return {kLargestRank, "gradient_accumulation_steps " + std::to_string(hint.accumulation)};
    case Change::kBf16Moments:
      return {kLargestRank, "optimizer.params.moments \"bf16\""};
    case Change::kShorterSequences:
      return {activations, "data.sequence_length " + std::to_string(hint.sequence_tokens)};
  }
  return {};
}

// The advice of all hints, the best first: "a, b, or c"; empty: there is none.
std::string advice_text(const config::Config& config, const RunPlan& plan,
                        bool activations_are_largest) {
  std::vector<Advice> all;
  all.reserve(plan.hints.size());
  for (const offload::FitHint& hint : plan.hints)
    all.push_back(advice_of(config, plan, hint, activations_are_largest));
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.rank < b.rank; });
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 == all.size() ? ", or " : ", ";
    text += all[i].text;
  }
  return text;
}

std::string writes_too_much(const config::Config& config, const RunPlan& plan) {
  std::ostringstream said;
  said << "this run would write at least " << tb_text(drive_wear(plan)->tb_per_day)
       << " TB to the drives per day, and budget.nvme_tb_per_day allows "
       << config.budget.nvme_tb_per_day.value_or(0);
  std::string text = said.str();
  const std::string advice = advice_text(config, plan, false);
  if (!advice.empty()) text += ". It would write no more than that with " + advice;
  text += ". To let it write as much, set budget.nvme_tb_per_day to " +
          decimals(std::ceil(drive_wear(plan)->tb_per_day), 0);
  return text;
}

}  // namespace

std::string does_not_fit(const config::Config& config, const RunPlan& plan) {
  if (plan.placement.writes_too_much) return writes_too_much(config, plan);
  const offload::TierBytes& missing = plan.placement.missing;
  std::string text = "this run does not fit";
  if (const std::string each = of_each_rank_text(plan); !each.empty()) text += ',' + each;
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
    text += "; the largest part is " + largest.what + ", " + format_bytes(largest.bytes);
  const std::string advice = advice_text(config, plan, is_activations(largest));
  if (advice.empty())
    return text +
           ". No single change is enough: use a smaller model, shorter sequences "
           "(data.sequence_length) or a larger machine";
  return text + ". It would fit with " + advice;
}

}  // namespace sluice::engine
