#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <vector>

#include "engine/observe/run_totals.h"
#include "engine/observe/trace_log.h"
#include "engine/plan/plan_report.h"
#include "engine/plan/run_plan.h"
#include "engine/plan/simulated_run.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/plan_here.h"

namespace sluice::tools {
namespace {

constexpr int kDoesNotFit = 2;

struct Options {
  ConfigOptions config;
  engine::DescribedMachine machine;
  engine::ClusterShape cluster;
  int simulated_steps = 0;
  std::string trace;
  bool refresh = false;
  bool json = false;
};

Result<std::vector<engine::StepMetrics>> simulate(const config::Config& config,
                                                  const engine::RunPlan& plan,
                                                  const Options& options) {
  engine::TraceLog trace;
  const bool traced = !options.trace.empty();
  if (traced) trace.start({.first_step = 1, .last_step = options.simulated_steps});
  SLUICE_ASSIGN_OR_RETURN(auto steps, engine::simulate_run(config, plan,
                                                           {.steps = options.simulated_steps,
                                                            .trace = traced ? &trace : nullptr}));
  if (traced) {
    SLUICE_RETURN_IF_ERROR(trace.write_json(options.trace));
    std::cerr << "trace of the simulated steps: " << options.trace
              << " (open it in ui.perfetto.dev, or give it to tools/trace_summary)\n";
  }
  return steps;
}

// The table of a run that ends.
std::string closing(const std::vector<engine::StepMetrics>& steps) {
  if (steps.empty()) return "";
  engine::RunTotals totals;
  for (const engine::StepMetrics& step : steps) totals.add(step);
  return "\nsimulated, in virtual time\n\n" + totals.closing_table();
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(options.config));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(
      const engine::RunPlan plan,
      plan_here(resolved.config,
                {.machine = options.machine, .refresh = options.refresh, .with_relief = true}));
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

void add_machine_options(CLI::App& command, engine::DescribedMachine& machine) {
  const auto add = [&](const char* name, std::optional<double>& value, const char* meaning) {
    command.add_option(name, value, meaning)->check(CLI::PositiveNumber)->group("Another machine");
  };
  add("--gpu-gib", machine.gpu_gib, "GPU memory; this and the next three describe a GPU");
  add("--bus-gb-per-s,--h2d-gb-per-s", machine.bus_gb_per_s, "host to GPU, and back");
  add("--tflops", machine.tflops, "dense products in the run's 16-bit type");
  add("--gpu-memory-gb-per-s", machine.gpu_memory_gb_per_s, "GPU memory, read plus written");
  add("--cpu-gib", machine.cpu_gib, "RAM that the run may take");
  add("--ram-gb-per-s", machine.ram_gb_per_s, "RAM, read plus written, by all cores");
  add("--nvme-gib", machine.nvme_gib, "space on the drives");
  add("--drive-read-gb-per-s", machine.drive_read_gb_per_s, "all drives together");
  add("--drive-write-gb-per-s", machine.drive_write_gb_per_s, "all drives together");
}

}  // namespace

Command add_plan_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "plan", "Says whether a run fits, what lies where, and how long a step will take");
  command->footer(
      "Measures this machine the first time (sluice probe), and is exact about a GPU that is in\n"
      "it. For one that is not:\n"
      "  sluice plan CONFIG --gpu-gib 24 --h2d-gb-per-s 12 --tflops 30\n"
      "Exits with 2 where nothing fits, and names the nearest setting that does.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_flag("--json", options->json, "Everything as one JSON object");
  command->add_flag("--refresh", options->refresh, "Measures this machine again");
  constexpr int kMostSteps = 1000;
  CLI::Option* const simulated =
      command
          ->add_option("--simulate", options->simulated_steps,
                       "Runs so many steps in virtual time: the schedule of a run, its drives' "
                       "traffic on a simulated drive; prints the table of a run")
          ->check(CLI::Range(1, kMostSteps));
  command->add_option("--trace", options->trace, "Writes the trace of the simulated steps there")
      ->needs(simulated);
  command->add_option("--gpus", options->cluster.gpus_per_node, "of a node, for the estimates")
      ->check(CLI::PositiveNumber);
  command->add_option("--nodes", options->cluster.nodes, "likewise")->check(CLI::PositiveNumber);
  add_machine_options(*command, options->machine);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
