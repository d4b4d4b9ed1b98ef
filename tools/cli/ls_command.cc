#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "aio/make_backend.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/observe/text_table.h"
#include "tools/cli/command.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string directory;
  bool verify = false;
};

constexpr int kQueueDepth = 32;

std::string loss_text(const std::optional<double>& loss) {
  return loss ? engine::decimals(*loss, 4) : "-";
}

// "intact": of what was looked at. `sound` becomes false where something is not.
Result<std::string> state_of(aio::IoQueue& queue, const engine::CheckpointEntry& entry, bool verify,
                             bool& sound) {
  if (entry.leftover) return std::string("not finished");
  if (!entry.complete()) {
    sound = false;
    const Error& error = entry.status.error();
    const char* const what = error.code() == ErrorCode::kNewerVersion ? "newer version: "
                             : error.code() == ErrorCode::kCorrupt    ? "damaged: "
                                                                      : "cannot be read: ";
    return what + error.message();
  }
  if (!verify) return std::string("complete");
  SLUICE_ASSIGN_OR_RETURN(const auto report, engine::verify_checkpoint(queue, entry.path, {}));
  if (report.damaged.empty()) return std::string("intact");
  sound = false;
  return "damaged: " + report.damaged.front().problem;
}

Result<int> run(const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto backend, aio::make_backend({.kind = aio::BackendKind::kAuto,
                                                                 .queue_depth = kQueueDepth}));
  SLUICE_ASSIGN_OR_RETURN(const auto queue,
                          aio::IoQueue::create(*backend, {.queue_depth = kQueueDepth}));
  SLUICE_ASSIGN_OR_RETURN(const bool there, backend->files().exists(options.directory));
  if (!there) return Error(ErrorCode::kNotFound, "there is no run in " + options.directory);
  const engine::CheckpointFolder folder(*queue, options.directory + "/checkpoints");
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.list());
  if (list.empty()) {
    std::cout << "no checkpoint lies in " << folder.path() << "\n";
    return 0;
  }
  bool sound = true;
  std::vector<engine::TextRow> rows = {{"checkpoint", "step", "loss", "val loss", "size", "state"}};
  for (const engine::CheckpointEntry& entry : list) {
    SLUICE_ASSIGN_OR_RETURN(const std::string state,
                            state_of(*queue, entry, options.verify, sound));
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
      "Exit code 1 where one is damaged or cannot be read.");
  const auto options = std::make_shared<Options>();
  command->add_option("DIR", options->directory, "The run's directory")->required();
  command->add_flag("--verify", options->verify, "Reads every byte, as sluice scrub DIR does");
  return [options] { return run(*options); };
}

}  // namespace sluice::tools
