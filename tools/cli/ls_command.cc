#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/observe/text_table.h"
#include "tools/cli/command.h"
#include "tools/cli/open_queue.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string directory;
  bool verify = false;
};

std::string loss_text(const std::optional<double>& loss) {
  return loss ? engine::decimals(*loss, 4) : "-";
}

// "intact": of what was looked at. `sound` becomes false where something is damaged.
Result<std::string> state_of(aio::IoQueue& queue, const engine::CheckpointEntry& entry, bool verify,
                             bool& sound) {
  if (!entry.has_manifest) return std::string("not finished");
  if (!entry.complete()) {
    sound = false;
    return "damaged: " + entry.status.error().message();
  }
  if (!verify) return std::string("complete");
  SLUICE_ASSIGN_OR_RETURN(const auto report, engine::verify_checkpoint(queue, entry.path, {}));
  if (report.damaged.empty()) return std::string("intact");
  sound = false;
  return "damaged: " + report.damaged.front().problem;
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  aio::IoQueue& queue = *files.queue;
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.backend->files().exists(options.directory));
  if (!there) return Error(ErrorCode::kNotFound, "there is no run in " + options.directory);
  const engine::CheckpointFolder folder(queue, options.directory + "/checkpoints");
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.list());
  if (list.empty()) {
    std::cout << "no checkpoint lies in " << folder.path() << "\n";
    return 0;
  }
  bool sound = true;
  std::vector<engine::TextRow> rows = {{"checkpoint", "step", "loss", "val loss", "size", "state"}};
  for (const engine::CheckpointEntry& entry : list) {
    SLUICE_ASSIGN_OR_RETURN(const std::string state, state_of(queue, entry, options.verify, sound));
    rows.push_back({entry.name, std::to_string(entry.step), loss_text(entry.loss),
                    loss_text(entry.validation_loss), format_bytes(entry.bytes), state});
  }
  std::cout << engine::aligned(rows);
  return sound ? 0 : kExitDamaged;
}

}  // namespace

Command add_ls_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("ls", "Lists a run's checkpoints: step, loss, size, whether intact");
  command->footer(
      "  sluice ls runs/demo            manifests and sizes: at once\n"
      "  sluice ls runs/demo --verify   every byte against its checksum\n"
      "Exit code 1 where one is damaged.");
  const auto options = std::make_shared<Options>();
  command->add_option("DIR", options->directory, "The run's directory")->required();
  command->add_flag("--verify", options->verify, "Reads every byte, as sluice scrub DIR does");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
