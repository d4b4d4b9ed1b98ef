#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "engine/config/key_table.h"
#include "engine/config/report.h"
#include "tools/cli/command.h"
#include "tools/session/config_options.h"

namespace sluice::tools {
namespace {

struct ConfigCommandOptions {
  ConfigOptions config;
  bool verbose = false;
  bool json = false;
  bool keys = false;
};

Result<int> run(const ConfigCommandOptions& options) {
  if (options.keys) {
    const ConfigOptions& config = options.config;
    if (!config.file.empty() || !config.deepspeed.empty() || !config.overrides.empty())
      return Error(ErrorCode::kInvalidArgument,
                   "--keys documents every key and accepts no configuration");
    std::cout << config::describe_keys();
    return 0;
  }
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved,
                          resolve(options.config, LookAtData::kIfItOpens));
  if (options.json)
    std::cout << config::to_json(resolved) << "\n";
  else
    std::cout << config::format_report(resolved, {.verbose = options.verbose});
  return 0;
}

}  // namespace

Command add_config_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "config", "Show the resolved configuration and how every key was treated");
  command->footer(
      "Every key is honoured, derived from others, or ignored with the reason; an unknown key "
      "is\nan error that names a similar one. A DeepSpeed file is read unchanged; with --json\n  "
      "sluice config --deepspeed ds_config.json --set model.preset=gpt2-xl\nprints an equivalent "
      "run file.");
  const auto options = std::make_shared<ConfigCommandOptions>();
  add_config_options(*command, options->config);
  auto* const verbose =
      command->add_flag("--verbose", options->verbose, "Also shows the keys that were not given");
  auto* const json = command
                         ->add_flag("--json", options->json,
                                    "Prints the resolved configuration as a run file; values that "
                                    "depend on the length of the run stay \"auto\"")
                         ->excludes(verbose);
  command->add_flag("--keys", options->keys, "Documents every key; needs no configuration")
      ->excludes(verbose)
      ->excludes(json);
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
