#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>

#include "aio/log.h"
#include "aio/terminal_line.h"
#include "aio/unix_time.h"
#include "engine/probe/machine_probe.h"
#include "tools/cli/command.h"
#include "tools/session/config_options.h"
#include "tools/session/speeds_path.h"

namespace sluice::tools {
namespace {

struct ProbeOptions {
  ConfigOptions config;
  bool refresh = false;
  bool json = false;
};

Result<int> run(const ProbeOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved,
                          options.config.file.empty() && options.config.deepspeed.empty()
                              ? resolve_for_probe(options.config)
                              : resolve(options.config));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  const std::int64_t now_unix_s = unix_s_now();
  engine::ProbeReport report;
  {
    TerminalLine line;
    const auto show = [&](const std::string& what, double fraction) {
      if (line.due())
        line.show("measuring " + what + ": " + std::to_string(std::lround(100 * fraction)) + "%");
    };
    SLUICE_ASSIGN_OR_RETURN(report,
                            engine::probe_machine(resolved.config, {.cache_path = speeds_path(),
                                                                    .refresh = options.refresh,
                                                                    .unix_s = now_unix_s,
                                                                    .on_progress = show}));
  }
  const std::string busy = engine::busy_warning(report);
  if (!busy.empty()) log::warning(busy);
  if (options.json)
    std::cout << engine::to_json(report) << "\n";
  else
    std::cout << engine::format_report(report, now_unix_s);
  return 0;
}

}  // namespace

Command add_probe_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "probe", "Measure this machine for the planner: memory, drives, GPU and a model's units");
  command->footer(
      "Takes a few seconds. Results are kept for 30 days, for this machine and setting, in\n"
      "${XDG_CACHE_HOME:-~/.cache}/sluice/speeds.json. The drives are those of the configuration;\n"
      "without one,\n"
      "  sluice probe --set 'budget.nvme_paths=[\"/nvme\"]'\n"
      "measures that path, and the units of GPT-2 small in bf16.");
  const auto options = std::make_shared<ProbeOptions>();
  add_config_options(*command, options->config);
  command->add_flag("--refresh", options->refresh, "Measures again and ignores kept results");
  command->add_flag("--json", options->json, "Prints one JSON object");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
