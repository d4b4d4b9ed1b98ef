#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/observe/metric_keys.h"
#include "tools/cli/command.h"

namespace sluice::tools {
namespace {

struct MetricsOptions {
  bool keys = false;
  bool json = false;
  bool markdown = false;
};

Result<int> run(const MetricsOptions& options) {
  std::cout << (options.json       ? engine::metrics_json() + "\n"
                : options.markdown ? engine::metrics_page()
                                   : engine::describe_metrics());
  return 0;
}

}  // namespace

Command add_metrics_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "metrics", "Document the files that a run records: metrics.jsonl and events.jsonl");
  command->footer("  sluice metrics --keys\nsluice report makes a page from these files.");
  const auto options = std::make_shared<MetricsOptions>();
  command->add_flag("--keys", options->keys, "Documents every key of both files")->required();
  auto* const json = command->add_flag("--json", options->json, "Prints one JSON object");
  command->add_flag("--markdown", options->markdown, "Prints engine/observe/METRICS.md")
      ->excludes(json);
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
