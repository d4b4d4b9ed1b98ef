#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <vector>

#include "aio/log.h"
#include "engine/config/report.h"
#include "engine/device/gpu.h"
#include "engine/observe/run_totals.h"
#include "engine/observe/text_table.h"
#include "engine/observe/trace_log.h"
#include "engine/plan/gpu_sheets.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "engine/plan/simulate/simulated_run.h"
#include "engine/preflight/leftovers.h"
#include "engine/preflight/preflight.h"
#include "engine/run/training_run.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/session/config_options.h"
#include "tools/session/plan_here.h"
#include "tools/session/run_tokenizer.h"
#include "tools/support/output_file.h"
#include "tools/support/value_hints.h"

namespace sluice::tools {
namespace {

constexpr int kDoesNotFit = 2;

struct PlanOptions {
  ConfigOptions config;
  engine::DescribedMachine machine;
  std::string gpu;  // a name from the table of GPUs
  std::optional<double> ram_gib;
  std::optional<double> data_tokens;
  bool lists_gpus = false;
  engine::ClusterShape cluster;  // one GPU on one host unless set

  offload::Topology ranks() const {
    const auto of_host = static_cast<int>(cluster.gpus_per_node);
    return {.world = of_host * static_cast<int>(cluster.nodes), .local_world = of_host};
  }
  int simulated_steps = 0;
  std::string trace;
  bool refresh = false;
  bool json = false;
  bool force = false;
};

Result<std::vector<engine::StepMetrics>> simulate(const config::Config& config,
                                                  const engine::RunPlan& plan,
                                                  const PlanOptions& options) {
  engine::TraceLog trace;
  const bool traced = !options.trace.empty();
  if (traced) trace.start({.first_step = 1, .last_step = options.simulated_steps});
  SLUICE_ASSIGN_OR_RETURN(auto steps, engine::simulate_run(config, plan,
                                                           {.steps = options.simulated_steps,
                                                            .trace = traced ? &trace : nullptr}));
  if (traced) {
    SLUICE_RETURN_IF_ERROR(trace.write_json(options.trace));
    std::cerr << "trace of the simulated steps: " << options.trace
              << " (open it in ui.perfetto.dev or with tools/trace_summary)\n";
  }
  return steps;
}

// The closing table for a run that ends.
std::string closing(const std::vector<engine::StepMetrics>& steps) {
  if (steps.empty()) return "";
  engine::RunTotals totals;
  for (const engine::StepMetrics& step : steps) totals.add(step);
  return "\nsimulated, in virtual time\n\n" + totals.closing_table();
}

// The same warnings as in training. A described machine's budgets are not compared with this
// machine.
std::vector<std::string> budget_warnings(const config::Config& config, const engine::RunPlan& plan,
                                         const engine::DescribedMachine& machine) {
  config::Budget budget = config.budget;
  if (machine.cpu_gib || machine.is_elsewhere) budget.cpu_gib.reset();
  if (machine.describes_gpu()) budget.gpu_gib.reset();
  return engine::budget_warnings(budget, plan.facts);
}

// Called before anything is measured.
Status check_ranks(const config::Config& config, const PlanOptions& options) {
  const auto refused = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  const offload::Topology ranks = options.ranks();
  const engine::DescribedMachine& machine = options.machine;
  constexpr int kMostRanks = 1 << 16;
  if (ranks.world > kMostRanks)
    return refused("--gpus times --hosts is " + std::to_string(ranks.world) + ": " +
                   std::to_string(kMostRanks) + " is the maximum");
  if (ranks.world == 1 && machine.describes_link())
    return refused(
        "--link-gb-per-s, --network-gb-per-s and --link-latency-us need several GPUs: set --gpus, "
        "and --hosts");
  if (ranks.hosts() == 1 && machine.network_gb_per_s)
    return refused("--network-gb-per-s needs several hosts: set --hosts");
  if (ranks.world == 1) return {};
  const bool has_gpu = machine.describes_gpu() || engine::uses_cuda(config);
  if (!has_gpu)
    return refused(
        "--gpus needs a GPU, but this run computes on the CPU: describe a GPU (--gpu, or --gpu-gib "
        "and the next options in --help), or plan on a machine with one");
  return {};
}

// Prints the GPUs that --gpu accepts, with the values of their data sheets.
int list_gpus() {
  std::vector<engine::TextRow> rows = {
      {"--gpu", "", "memory", "TFLOP/s", "of it", "memory, GB/s", "bus, GB/s"}};
  for (const engine::GpuSheet& it : engine::gpu_sheets())
    rows.push_back({std::string(it.name), std::string(it.title),
                    engine::decimals(it.memory_gib, 1) + " GiB", engine::decimals(it.tflops, 0),
                    engine::decimals(100 * it.products.share, 0) + "%",
                    engine::decimals(it.memory_gb_per_s, 0), engine::decimals(it.bus_gb_per_s, 0)});
  std::cout << engine::aligned(rows);
  return 0;
}

// Translates --gpu and --ram into the other options.
Status complete_machine(PlanOptions& options) {
  engine::DescribedMachine& machine = options.machine;
  if (!options.gpu.empty()) {
    SLUICE_ASSIGN_OR_RETURN(machine.gpu, engine::find_gpu_sheet(options.gpu));
    machine.is_elsewhere = true;
  }
  constexpr double kForTheRun = 0.875;  // the rest is for the system and other processes
  if (options.ram_gib) machine.cpu_gib = kForTheRun * *options.ram_gib;
  return {};
}

// Sets the steps of the run's epochs over data that is not on this machine.
Status set_steps(const PlanOptions& options, config::Resolved& resolved) {
  if (!options.data_tokens) return {};
  config::Config& config = resolved.config;
  const bool has_steps =
      std::any_of(resolved.reports.begin(), resolved.reports.end(),
                  [](const auto& key) { return key.path == "run.steps" && key.given; });
  if (has_steps && !config.run.epochs)
    return Error(ErrorCode::kInvalidArgument,
                 "--data-tokens sets the steps from run.epochs, but run.steps is " +
                     std::to_string(config.run.steps) +
                     " already: leave it out, or use --set run.epochs=1");
  const double of_a_step =
      static_cast<double>(config.batch.train) * static_cast<double>(config.data.sequence_tokens);
  const double steps = config.run.epochs.value_or(1) * *options.data_tokens / of_a_step;
  config.run.steps = std::max<std::int64_t>(std::llround(std::ceil(std::min(steps, 1e15))), 1);
  return {};
}

// Describes what is planned if there is no run file.
std::string invented_text(const config::Config& config) {
  const std::string training = config.lora.rank > 0 ? "adapters for" : "a full training of";
  const std::string model = config.model.path.empty() ? "model.preset " + config.model.preset
                                                      : "the model in " + config.model.path;
  return "no run file: this plans " + training + " " + model + ", " +
         std::to_string(config.batch.train) + " sequences of " +
         std::to_string(config.data.sequence_tokens) + " tokens per step";
}

// Whether the plan assumes values for drives that were not given.
bool has_described_drives(const engine::DescribedMachine& machine) {
  return machine.describes_gpu() || machine.describes_drives();
}

Result<int> run(PlanOptions options, aio::IoWatchdog& watchdog) {
  if (options.lists_gpus) return list_gpus();
  SLUICE_RETURN_IF_ERROR(complete_machine(options));
  SLUICE_RETURN_IF_ERROR(check_output_file(
      {.option = "--trace", .path = options.trace, .replaces = options.force, .made_folder = {}}));
  const offload::Topology ranks = options.ranks();
  ConfigOptions config_options = options.config;
  config_options.world_size = ranks.world;
  config_options.needs_shape_only = options.machine.describes_gpu();
  const bool invented = take_model_as_config(config_options, has_described_drives(options.machine));
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved,
                          resolve(config_options, LookAtData::kIfItOpens));
  if (invented) log::info(invented_text(resolved.config));
  SLUICE_RETURN_IF_ERROR(set_steps(options, resolved));
  SLUICE_RETURN_IF_ERROR(check_ranks(resolved.config, options));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  for (const std::string& text : {config::renamed_keys(resolved), config::unused_keys(resolved)})
    if (!text.empty()) log::warning(text);
  if (!options.machine.is_elsewhere) {
    warn_of_data(resolved.config);
    warn_of_tokenizers(resolved.config, watchdog);
    if (const std::string note = engine::leftovers_note(resolved.config); !note.empty())
      log::warning(note);
  }
  SLUICE_ASSIGN_OR_RETURN(const engine::RunPlan plan,
                          plan_here(resolved.config, {.machine = options.machine,
                                                      .refresh = options.refresh,
                                                      .with_what_ifs = true,
                                                      .with_growth = true,
                                                      .with_longest_sequence = true,
                                                      .ranks = ranks}));
  for (const std::string& warning : budget_warnings(resolved.config, plan, options.machine))
    log::warning(warning);
  std::vector<engine::StepMetrics> steps;
  if (plan.placement.fits && options.simulated_steps > 0) {
    SLUICE_ASSIGN_OR_RETURN(steps, simulate(resolved.config, plan, options));
  }
  if (options.json)
    std::cout << engine::plan_json(resolved.config, plan, options.cluster, steps) << "\n";
  else
    std::cout << engine::format_plan(resolved.config, plan, options.cluster) << closing(steps);
  return plan.placement.fits ? 0 : kDoesNotFit;
}

std::string gpu_names() {
  std::string names;
  for (const engine::GpuSheet& it : engine::gpu_sheets())
    names += (names.empty() ? "" : "|") + std::string(it.name);
  return names;
}

void add_machine_options(CLI::App& command, engine::DescribedMachine& machine) {
  const auto add = [&](const char* name, std::optional<double>& value, const char* meaning) {
    command.add_option(name, value, meaning)->check(above_zero())->group("Another machine");
  };
  add("--gpu-gib", machine.gpu_gib,
      "GPU memory; this and the next three options are data sheet values, of which the plan uses "
      "the shares that it prints");
  add("--bus-gb-per-s,--h2d-gb-per-s", machine.bus_gb_per_s,
      "host to GPU, each way: 32 for PCIe 4 x16, 64 for PCIe 5");
  add("--tflops", machine.tflops,
      "matrix products in the run's type with fp32 accumulation, without sparsity; data sheets "
      "list it for 16 bits");
  add("--gpu-memory-gb-per-s", machine.gpu_memory_gb_per_s, "GPU memory");
  add("--cpu-gib", machine.cpu_gib, "RAM that the run may use");
  add("--ram-gb-per-s", machine.ram_gb_per_s, "RAM bandwidth of all cores, read plus written");
  add("--nvme-gib", machine.nvme_gib, "space on the drives");
  add("--drive-read-gb-per-s", machine.drive_read_gb_per_s, "all drives together");
  add("--drive-write-gb-per-s", machine.drive_write_gb_per_s, "all drives together, sustained");
  add("--drive-tbw", machine.drive_tbw,
      "rated write endurance of all drives, in TB written (default: 600 per TB of space)");
  add("--link-gb-per-s", machine.link_gb_per_s,
      "between the GPUs of a host, per GPU and direction");
  add("--network-gb-per-s", machine.network_gb_per_s, "between hosts, per host and direction");
  add("--link-latency-us", machine.link_latency_us, "latency of each exchange between GPUs");
}

}  // namespace

Command add_plan_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "plan", "Plan a run: whether it fits, where its state is placed, how long a step takes");
  command->footer(
      "Measures this machine the first time (sluice probe). Another machine can be described, with "
      "a run file\nor a model's name (model.preset); neither the model nor the data is needed:\n  "
      "sluice plan qwen3-8b --gpu rtx4090 --ram 64\n  sluice plan CONFIG --gpu-gib 24 "
      "--bus-gb-per-s 16 --tflops 71\nFor several GPUs, describe a whole host; the plan then "
      "includes a scaling table:\n  sluice plan CONFIG --gpus 8 --hosts 4 --gpu h100 --cpu-gib "
      "1000 \\\n      --link-gb-per-s 250 --network-gb-per-s 100\nExit code 2: the run does not "
      "fit; the plan then names settings that would.");
  const auto options = std::make_shared<PlanOptions>();
  add_config_options(*command, options->config);
  command->add_flag("--json", options->json, "Prints one JSON object");
  command->add_flag("--refresh", options->refresh, "Measures this machine again");
  constexpr int kMostSteps = 1000;
  CLI::Option* const simulated =
      command
          ->add_option("--simulate", options->simulated_steps,
                       "Simulates this many steps in virtual time, with a simulated drive, and "
                       "prints a run's closing table")
          ->check(CLI::Range(1, kMostSteps));
  CLI::Option* const trace =
      command
          ->add_option("--trace", options->trace,
                       "Writes the trace of the simulated steps to this file")
          ->needs(simulated);
  command->add_flag("--force", options->force, "Replaces the file of --trace")->needs(trace);
  constexpr int kMostGpus = 64;
  constexpr int kMostHosts = 1 << 16;
  CLI::Option* const gpus = command
                                ->add_option("--gpus", options->cluster.gpus_per_node,
                                             "GPUs per host, with one rank each")
                                ->check(CLI::Range(1, kMostGpus));
  command->add_option("--hosts,--nodes", options->cluster.nodes, "number of such hosts")
      ->check(CLI::Range(1, kMostHosts))
      ->needs(gpus);
  command->add_option("--gpu", options->gpu, "Name of a GPU, for another machine than this one")
      ->check(choices(gpu_names()))
      ->group("Another machine");
  command->add_option("--ram", options->ram_gib, "RAM of that machine in GiB")
      ->check(above_zero())
      ->group("Another machine");
  add_machine_options(*command, options->machine);
  command->get_option("--cpu-gib")->excludes("--ram");
  command
      ->add_option("--data-tokens", options->data_tokens,
                   "Tokens of the training data if it is not on this machine: for the run's hours "
                   "and the bytes it writes")
      ->check(above_zero());
  command->add_flag("--list-gpus", options->lists_gpus, "Lists the GPUs for --gpu");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
