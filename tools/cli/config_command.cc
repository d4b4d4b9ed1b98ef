#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/config/key_table.h"
#include "engine/config/report.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"

namespace sluice::tools {
namespace {

struct Options {
  ConfigOptions config;
  bool verbose = false;
  bool json = false;
  bool keys = false;
};

Result<int> run(const Options& options) {
  if (options.keys) {
    std::cout << config::describe_keys();
    return 0;
  }
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(options.config));
  if (options.json)
    std::cout << config::to_json(resolved.config) << "\n";
  else
    std::cout << config::format_report(resolved, {.verbose = options.verbose});
  return 0;
}

}  // namespace

Command add_config_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "config", "Shows the resolved configuration, and what became of every key");
  command->footer(
      "Every key is honoured, derived from others, or ignored with the reason; one that is not\n"
      "known is an error that names the nearest known one. A DeepSpeed file is read as it is:\n"
      "  sluice config --deepspeed ds_config.json --set model.preset=gpt2-xl\n"
      "writes with --json a run file that does the same.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_flag("--verbose", options->verbose, "Also the keys that nobody gave");
  command->add_flag("--json", options->json, "The resolved configuration as a run file");
  command->add_flag("--keys", options->keys, "Documents every key, and needs no configuration");
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
