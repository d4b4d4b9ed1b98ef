#include "engine/plan/report/plan_report.h"

#include <algorithm>
#include <vector>

#include "engine/plan/report/plan_words.h"
#include "offload/planner/zero_estimates.h"

namespace sluice::engine {
namespace {

using offload::StepPrediction;

void add_tier(std::vector<TextRow>& rows, const std::string& name,
              const std::vector<MemoryLine>& lines, std::uint64_t used, std::uint64_t budget) {
  if (used == 0) return;
  rows.push_back({name, format_bytes(used), "of " + format_bytes(budget)});
  for (const MemoryLine& line : lines)
    if (line.bytes > 0) rows.push_back({"  " + line.what, format_bytes(line.bytes)});
}

// The bytes on each of several NVMe paths.
std::string nvme_path_table(const RunPlan& plan) {
  const std::vector<NvmePathShare> shares = nvme_path_shares(plan);
  if (shares.size() < 2) return "";
  const bool striped = plan.stripes.striped;
  const auto speed = [](double bytes_per_s) {
    return bytes_per_s > 0 ? decimals(1e-9 * bytes_per_s, 2) + " GB/s" : "?";
  };
  const auto row = [&](const std::string& name, const std::string& share, const std::string& takes,
                       const std::string& room, const std::string& read, const std::string& write) {
    return striped ? TextRow{name, share, takes, room, read, write}
                   : TextRow{name, takes, room, read, write};
  };
  std::vector<TextRow> rows = {row("NVMe path", "share", "takes", "room", "read", "write")};
  for (const NvmePathShare& it : shares) {
    rows.push_back(row("  " + it.path, percent_text(it.share.value_or(0)), format_bytes(it.bytes),
                       it.room_bytes ? format_bytes(*it.room_bytes) : "?",
                       speed(it.rates.in_bytes_per_s), speed(it.rates.out_bytes_per_s)));
  }
  if (!striped) return aligned(rows) + "\n";
  const offload::DuplexRates& together = plan.machine.speeds.drives;
  rows.push_back(row("  together", "", "", "", speed(together.in_bytes_per_s),
                     speed(together.out_bytes_per_s)));
  const std::string restriped = restriped_text(plan.stripes);
  return aligned(rows) + (restriped.empty() ? "" : restriped + "\n") + "\n";
}

struct Shares {
  double gpu = 0, cpu = 0, nvme = 0;  // of the state
  int resident = 0, kept = 0, offloaded = 0, spilled = 0, blocks = 0, units = 0;
};

Shares shares_of(const RunPlan& plan) {
  Shares shares;
  double all = 0;
  shares.units = static_cast<int>(plan.placement.places.size());
  for (std::size_t unit = 0; unit < plan.placement.places.size(); ++unit) {
    const offload::UnitPlacement& place = plan.placement.places[unit];
    shares.gpu += static_cast<double>(place.gpu_elements);
    shares.cpu += static_cast<double>(place.cpu_elements);
    shares.nvme += static_cast<double>(place.nvme_elements);
    all += static_cast<double>(plan.input.units[unit].elements);
    shares.resident += place.resident ? 1 : 0;
    shares.spilled += place.activations == offload::ActivationPlace::kSpill ? 1 : 0;
    if (!has_activations(plan.input.units[unit])) continue;
    ++shares.blocks;
    shares.kept += place.activations == offload::ActivationPlace::kKeep ? 1 : 0;
    shares.offloaded += place.activations == offload::ActivationPlace::kOffload ? 1 : 0;
  }
  for (double* const share : {&shares.gpu, &shares.cpu, &shares.nvme}) *share /= all;
  return shares;
}

std::string activations_text(const Shares& shares) {
  const std::string blocks = std::to_string(shares.blocks);
  if (shares.blocks == 0) return "kept by the module itself";
  if (shares.kept == shares.blocks) return "all " + blocks + " blocks keep theirs";
  if (shares.kept == 0) return "all " + blocks + " blocks recompute theirs";
  return std::to_string(shares.kept) + " of " + blocks +
         " blocks keep theirs, the others recompute";
}

std::string placement_text(const RunPlan& plan) {
  const Shares shares = shares_of(plan);
  std::string text = "optimizer state: " + percent_text(shares.gpu) + " GPU, " +
                     percent_text(shares.cpu) + " host memory, " + percent_text(shares.nvme) +
                     " NVMe\n";
  const offload::Waves& waves = plan.memory.waves;
  if (waves.count() > 1)
    text += "waves: " + std::to_string(waves.count()) + " per step, each of " +
            (waves.micro_batches % waves.of_a_wave == 0 ? "" : "at most ") +
            std::to_string(waves.of_a_wave) + " of its " + std::to_string(waves.micro_batches) +
            " micro-batches\n";
  const std::string spilled =
      shares.spilled > 0 ? std::to_string(shares.spilled) + " are kept on NVMe" : "";
  if (!plan.memory.cuda)
    return spilled.empty() ? text : text + "activations: the inputs of " + spilled + "\n";
  text += "parameters: " + std::to_string(shares.resident) + " of " + std::to_string(shares.units) +
          " units stay on the GPU\n";
  text += "activations: " + activations_text(shares);
  if (shares.offloaded > 0)
    text += "; the inputs of " + std::to_string(shares.offloaded) + " are kept in host memory";
  if (!spilled.empty()) text += (shares.offloaded > 0 ? ", of " : "; the inputs of ") + spilled;
  return text + "\n";
}

std::string resource_table(const StepPrediction& step) {
  std::vector<TextRow> rows = {{"resource", "busy", "share of step"}};
  for (int i = 0; i < offload::kResources; ++i) {
    const auto resource = static_cast<offload::Resource>(i);
    const double busy_s = step.busy(resource);
    if (busy_s <= 0) continue;
    rows.push_back(
        {resource_name(resource), milliseconds_text(busy_s), percent_text(busy_s / step.step_s)});
  }
  return aligned(rows);
}

std::string ranks_name(const offload::Topology& ranks) {
  if (ranks.hosts() == 1) return std::to_string(ranks.world);
  return std::to_string(ranks.world) + " on " + std::to_string(ranks.hosts()) + " hosts";
}

// Runs with fewer ranks; each rank has the same tokens per step.
std::string growth_table(const RunPlan& plan) {
  if (plan.growth.empty()) return "";
  std::vector<TextRow> rows = {
      {"ranks", "step", "tokens/s", "scaling efficiency", "exposed link time", "bottleneck"}};
  for (const RankGrowth& row : plan.growth) {
    if (!row.fits) {
      rows.push_back({"  " + ranks_name(row.ranks), "does not fit"});
      continue;
    }
    rows.push_back({"  " + ranks_name(row.ranks), milliseconds_text(row.step_s),
                    compact(row.tokens_per_s), percent_text(row.share_of_linear),
                    milliseconds_text(row.link_exposed_s), resource_name(row.bottleneck)});
  }
  return aligned(rows) + "\n";
}

std::string zero_table(const RunPlan& plan, const ClusterShape& cluster) {
  std::uint64_t largest = 0;
  for (const offload::UnitCost& unit : plan.input.units) largest = std::max(largest, unit.elements);
  const offload::ZeroModel model{.parameters = plan.parameters,
                                 .largest_layer_parameters = largest};
  const offload::ZeroMachines machines{.gpus_per_node = cluster.gpus_per_node,
                                       .nodes = cluster.nodes};
  std::vector<TextRow> rows = {{"DeepSpeed's estimate, " + std::to_string(cluster.nodes) + " x " +
                                    std::to_string(cluster.gpus_per_node) + " GPUs",
                                "each GPU", "each host"}};
  const auto add = [&](const std::string& stage, const offload::ZeroEstimate& it) {
    std::string what = "  " + stage;
    if (it.offload_params) what += ", parameters";
    if (it.offload_optimizer) what += it.offload_params ? " and optimizer" : ", optimizer";
    if (it.offload_optimizer || it.offload_params) what += " offloaded";
    if (it.zero_init) what += ", zero.Init";
    rows.push_back({what, format_bytes(it.gpu_bytes), format_bytes(it.cpu_bytes)});
  };
  for (const auto& it : offload::zero2_estimates(model, machines)) add("ZeRO-2", it);
  for (const auto& it : offload::zero3_estimates(model, machines)) add("ZeRO-3", it);
  const std::string gpus =
      plan.ranks.world > 1 ? std::to_string(plan.ranks.world) + " GPUs" : "one GPU";
  rows.push_back({"Sluice, " + gpus + ", including activations",
                  format_bytes(plan.memory.gpu_bytes()),
                  format_bytes(plan.ranks.of_host(plan.memory.host_bytes()))});
  return aligned(rows);
}

// Empty: all parameters compute each token.
std::string active_text(const RunPlan& plan) {
  if (plan.active == plan.parameters) return "";
  return compact(static_cast<double>(plan.active)) + " active, ";
}

std::string adapters_text(const config::Config& config, const RunPlan& plan) {
  if (!plan.trains_adapters) return "";
  const std::int64_t bits = config.lora.base_bits;
  return (bits < 16 ? "stored in " + std::to_string(bits) + " bits, " : std::string()) + "and " +
         compact(static_cast<double>(plan.trained)) + " of adapters, ";
}

std::string gb_per_s(double bytes_per_s) { return decimals(1e-9 * bytes_per_s, 1) + " GB/s"; }

// Which resources ranks share, and the links between them; empty: there is one rank.
std::string ranks_text(const RunPlan& plan) {
  const offload::Topology& ranks = plan.ranks;
  if (ranks.world == 1) return "";
  const offload::LinkSpeeds& link = plan.machine.speeds.link;
  const ProbedWhen& when = plan.machine.link_when;
  std::string text = std::to_string(ranks.world) + " ranks, ";
  text += ranks.hosts() > 1 ? std::to_string(ranks.local_world) + " on each of " +
                                  std::to_string(ranks.hosts()) + " hosts"
                            : "all on one host";
  text +=
      ": the following is per rank, and each has an equal part of its host's memory, drives and "
      "cores\nlink: " +
      gb_per_s(link.gather_bytes_per_s) + " of all-gather and " +
      gb_per_s(link.exchange_bytes_per_s) + " of all-to-all per rank, ";
  if (ranks.hosts() > 1 && link.network_bytes_per_s > 0)
    text += gb_per_s(link.network_bytes_per_s) + " between hosts, ";
  return text + decimals(1e6 * link.latency_s, 0) + " us per call (" +
         (when.estimated ? "as described or assumed" : "measured") + ")\n";
}

// The cost of communication between ranks.
std::string link_text(const RunPlan& plan) {
  if (plan.ranks.world == 1) return "";
  const StepPrediction& step = plan.placement.prediction;
  return "link: " + decimals(1e-9 * step.link_bytes, 2) + " GB received by each rank per step; " +
         milliseconds_text(step.link_exposed_s) + " not overlapped with compute\n";
}

std::string described_text(const RunPlan& plan) {
  const ProbeReport& machine = plan.machine;
  std::string text;
  if (!machine.shares.empty()) {
    std::vector<TextRow> rows = {{"share of the data sheet's rate", "taken", "from"}};
    for (const RateShare& it : machine.shares)
      rows.push_back({"  " + std::string(it.what), percent_text(it.share), std::string(it.from)});
    text += "\n" + aligned(rows);
  }
  const auto list = [&](const char* what, const std::vector<std::string>& items) {
    if (items.empty()) return;
    text += what;
    for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : "; ") + items[i];
    text += '\n';
  };
  list("assumed, because not given: ", machine.assumed);
  list("taken from this machine, because not given: ", machine.from_here);
  return text;
}

// With a limit of what is written to the drives, it would not be enough.
std::string floor_text(const config::Config& config, const RunPlan& plan) {
  if (!plan.host_floor_bytes || config.budget.nvme_tb_per_day) return "";
  return "host memory: " + format_bytes(*plan.host_floor_bytes) +
         " would be enough, with everything else on the drives\n";
}

// Requires a plan that writes to drives.
std::string wear_text(const RunPlan& plan) {
  const DriveWear wear = *drive_wear(plan);
  const int ranks = plan.ranks.local_world;
  return decimals(wear.tb_per_day, 1) + " TB written per day" +
         (ranks > 1 ? " by the " + std::to_string(ranks) + " ranks of a host" : "") +
         ": the drives' rated endurance (" + rating_text(plan) + ") lasts " + days_text(wear.days) +
         " of training at this rate";
}

std::string outlook_text(const config::Config& config, const RunPlan& plan) {
  const auto outlook = run_outlook(config, plan);
  if (!outlook) return "";
  const double tokens =
      static_cast<double>(outlook->steps) * static_cast<double>(plan.tokens_per_step);
  std::string text = "the run: " + std::to_string(outlook->steps) + " steps, " + compact(tokens) +
                     " tokens, " + decimals(outlook->hours, outlook->hours < 10 ? 1 : 0) + " hours";
  if (outlook->written_tb > 0)
    text += "; " + decimals(outlook->written_tb, outlook->written_tb < 10 ? 1 : 0) +
            " TB written, " + decimals(100 * outlook->drive_life, 1) + "% of the " +
            decimals(plan.drive_tbw, 0) +
            (plan.drive_tbw_assumed
                 ? " TB of write endurance (an assumed rating: give your drive's with --drive-tbw)"
                 : " TB of write endurance that the drives are rated for");
  return text + "\n";
}

std::string longest_sequence_text(const config::Config& config, const RunPlan& plan) {
  if (plan.longest_sequence.value_or(0) == 0) return "";
  const std::int64_t context = config.model.context_tokens;
  return "longest sequence that fits: " + std::to_string(*plan.longest_sequence) +
         " tokens, with one in a step" + (plan.ranks.world > 1 ? " of each rank" : "") +
         (*plan.longest_sequence > context ? " (model.context is " + std::to_string(context) + ")\n"
                                           : "\n");
}

}  // namespace

std::string memory_table(const RunPlan& plan) {
  std::vector<TextRow> rows = {{"tier" + of_each_rank_text(plan), "takes", "budget"}};
  const offload::TierBytes& budget = plan.budget;
  add_tier(rows, "GPU", plan.memory.gpu, plan.memory.gpu_bytes(), budget.gpu);
  add_tier(rows, "host memory", plan.memory.host, plan.memory.host_bytes(), budget.cpu);
  add_tier(rows, "NVMe", plan.memory.nvme, plan.memory.nvme_bytes(), budget.nvme);
  return aligned(rows);
}

std::string what_if_table(const RunPlan& plan) {
  const bool writes = drive_wear(plan).has_value();
  std::vector<TextRow> rows = {{"with", "step", "tokens/s"}};
  if (writes) rows[0].emplace_back("TB written per day");
  for (const offload::WhatIf& what_if : plan.what_if) {
    rows.push_back({change_name(what_if.change), milliseconds_text(what_if.step_s),
                    (what_if.tokens_per_s_ratio >= 1 ? "+" : "") +
                        percent_text(what_if.tokens_per_s_ratio - 1)});
    if (writes) rows.back().push_back(decimals(tb_per_day(plan, what_if), 1));
  }
  return rows.size() > 1 ? aligned(rows) : "";
}

std::string format_plan(const config::Config& config, const RunPlan& plan,
                        const ClusterShape& cluster) {
  const StepPrediction& step = plan.placement.prediction;
  std::string text = config.model.family + " model with " +
                     compact(static_cast<double>(plan.parameters)) + " parameters, " +
                     active_text(plan) + adapters_text(config, plan) +
                     std::to_string(plan.tokens_per_step) + " tokens per step, on " +
                     (plan.machine.gpu.empty() ? plan.machine.cpu : plan.machine.gpu) + "\n" +
                     ranks_text(plan) + "\n" + memory_table(plan) + "\n" + nvme_path_table(plan);
  if (!plan.placement.fits)
    return text + does_not_fit(config, plan) + "\n" + longest_sequence_text(config, plan) +
           described_text(plan);
  text += placement_text(plan) + "\n" + resource_table(step) + "\n" + plan_summary(plan) + "\n" +
          link_text(plan);
  if (step.nvme_write_bytes > 0) {
    text += "drives: " + decimals(1e-9 * step.nvme_read_bytes, 2) + " GB read and " +
            decimals(1e-9 * step.nvme_write_bytes, 2) + " GB written per step; " + wear_text(plan) +
            "\n";
  }
  text += floor_text(config, plan);
  const std::string pinning = pinning_text(plan.machine);
  if (!pinning.empty()) text += pinning + "\n";
  text += outlook_text(config, plan) + longest_sequence_text(config, plan) + described_text(plan);
  const std::string what_if = what_if_table(plan);
  if (!what_if.empty()) text += "\n" + what_if;
  const std::string growth = growth_table(plan);
  if (!growth.empty()) text += "\n" + growth;
  // DeepSpeed's estimator assumes that all parameters are trained.
  if (plan.trains_adapters) return text;
  return text + "\n" + zero_table(plan, cluster);
}

std::string wear_warning(const config::Config& config, const RunPlan& plan) {
  constexpr double kFewDays = 60;
  constexpr double kLittleTb = 1;
  const auto wear = drive_wear(plan);
  const auto outlook = run_outlook(config, plan);
  if (!wear || wear->days >= kFewDays || !outlook || outlook->written_tb < kLittleTb) return "";
  std::string text = "this run writes " + tb_text(outlook->written_tb) + " TB to the drives, " +
                     decimals(100 * outlook->drive_life, 1) + "% of their rated endurance (" +
                     rating_text(plan) + "); training at this rate, " + tb_text(wear->tb_per_day) +
                     " TB per day, uses it up in " + days_text(wear->days);
  std::string less;
  for (const offload::WhatIf& it : plan.what_if)
    if (tb_per_day(plan, it) < 0.95 * wear->tb_per_day)
      less += (less.empty() ? "" : ", ") + tb_text(tb_per_day(plan, it)) + " with " +
              change_name(it.change);
  if (!less.empty()) text += ". It would write less per day: " + less;
  return config.budget.nvme_tb_per_day ? text : text + ". budget.nvme_tb_per_day sets a limit";
}

std::string plan_summary(const RunPlan& plan) {
  const StepPrediction& step = plan.placement.prediction;
  const int waves = plan.memory.waves.count();
  std::string text =
      "plan: " + milliseconds_text(step.step_s) + " a step" +
      (waves > 1 ? " in " + std::to_string(waves) + " waves" : "") +
      (plan.ranks.world > 1 ? " on " + std::to_string(plan.ranks.world) + " ranks" : "") + ", " +
      compact(tokens_per_s(plan)) + " tokens/s; limited by " + resource_name(step.bottleneck) +
      " (busy " + percent_text(step.busy(step.bottleneck) / step.step_s) + ")";
  if (step.update_exposed_s > 0.005 * step.step_s)
    text += ", forward waits " + milliseconds_text(step.update_exposed_s) + " for updates";
  return text;
}

}  // namespace sluice::engine
