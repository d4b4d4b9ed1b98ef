#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "engine/observe/metrics_log.h"
#include "engine/observe/run_totals.h"
#include "tools/cli/command.h"

namespace sluice::tools {
namespace {

struct DiffOptions {
  std::string a;
  std::string b;
};

Result<std::vector<engine::StepMetrics>> metrics_of(const std::string& path) {
  std::error_code error;  // if this fails, opening it fails too and says why
  const bool folder = std::filesystem::is_directory(path, error);
  const std::string file = folder ? path + "/metrics.jsonl" : path;
  if (!std::filesystem::exists(file, error) && !error)
    return Error(ErrorCode::kNotFound, "there is no " + file +
                                           ": name a run's folder (sluice train --out), or its "
                                           "metrics.jsonl");
  return engine::read_metrics(file);
}

void print_units(const char* what, const std::vector<std::string>& units) {
  if (units.empty()) return;
  constexpr std::size_t kMost = 8;
  std::cout << "  " << what << " of " << units.size() << (units.size() == 1 ? " unit" : " units")
            << ": ";
  for (std::size_t i = 0; i < units.size() && i < kMost; ++i)
    std::cout << (i > 0 ? ", " : "") << units[i];
  std::cout << (units.size() > kMost ? ", ...\n" : "\n");
}

Result<int> run(const DiffOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto a, metrics_of(options.a));
  SLUICE_ASSIGN_OR_RETURN(const auto b, metrics_of(options.b));
  const engine::RunComparison compared = engine::compare_runs(a, b);
  if (compared.equal_steps == 0 && !compared.difference) {
    return Error(ErrorCode::kInvalidArgument,
                 options.a + " and " + options.b + " have no step in common");
  }
  std::cout << compared.equal_steps << " steps are the same, " << compared.hashed_steps
            << " of them with the hashes of all units\n";
  if (compared.only_in_a > 0) std::cout << compared.only_in_a << " only in " << options.a << "\n";
  if (compared.only_in_b > 0) std::cout << compared.only_in_b << " only in " << options.b << "\n";
  if (!compared.difference) return 0;
  const engine::RunDifference& difference = *compared.difference;
  std::cout << "step " << difference.step << " is the first that differs\n";
  for (const std::string& metric : difference.metrics) std::cout << "  " << metric << "\n";
  // Backward runs from the last unit to the first, so the runs diverged in the last one listed.
  if (!difference.gradients.empty())
    std::cout << "  first in backward: unit " << difference.gradients.back() << "\n";
  print_units("gradients", difference.gradients);
  print_units("parameters", difference.parameters);
  if (difference.gradients.empty() && !difference.parameters.empty())
    std::cout << "  the gradients are the same: the update diverged\n";
  if (difference.gradients.empty() && difference.parameters.empty()) {
    std::cout << "  to find the unit, train both with --set run.hash_units=true\n";
  }
  return kExitDiffers;
}

}  // namespace

Command add_diff_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "diff", "Compare two runs: find the first step and the units in which they differ");
  command->footer(
      "  sluice train CONFIG --out a --set run.hash_units=true\n  sluice train CONFIG --out b "
      "--set run.hash_units=true --set placement.overlap_update=false\n  sluice diff a b\nCompares "
      "losses, norms, scales and hashes, whose bits do not depend on where the state is "
      "stored,\nbut not times. Exit code 1: the runs differ.");
  const auto options = std::make_shared<DiffOptions>();
  command->add_option("RUN_A", options->a, "A run's folder or metrics.jsonl file")->required();
  command->add_option("RUN_B", options->b, "The other run")->required();
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
