#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "aio/units.h"
#include "engine/checkpoint/copy_checkpoint.h"
#include "engine/exchange/export_model.h"
#include "tools/cli/command.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/open_queue.h"
#include "tools/session/show_share.h"

namespace sluice::tools {
namespace {

struct CopyOptions {
  std::string from;
  std::string to;
  std::string checkpoint;
};

// "copy/" -> "copy": the files are first written to a folder copy.new next to it.
std::string without_last_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Result<int> run(const CopyOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  const std::string to = without_last_slash(options.to);
  SLUICE_RETURN_IF_ERROR(engine::check_empty(files.backend->files(), to));
  SLUICE_ASSIGN_OR_RETURN(const CheckpointArgument from,
                          find_checkpoint(*files.queue, options.from, options.checkpoint));
  TerminalLine line;
  bool has_begun = false;
  const auto copied = engine::copy_checkpoint(
      *files.queue,
      {.from = from.path, .to = to, .progress = show_share(line, "copying", &has_begun)});
  line.clear();
  if (!copied.ok() && has_begun) return at_work(copied.error());
  if (!copied.ok()) return copied.error();
  std::cout << to << ": the checkpoint " << from.path << " of step " << copied->step << ", "
            << format_bytes(copied->bytes) << "\n";
  return 0;
}

}  // namespace

Command add_copy_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "copy", "Copy a checkpoint to a folder that needs no store and no other rank's files");
  command->footer(
      "  sluice copy runs/demo /backup/demo\n  sluice copy runs/demo /backup/demo-400 --checkpoint "
      "400\n  sluice train run.json --resume=/backup/demo --out runs/continued\nOUT gets a "
      "checkpoint as one rank writes it, with every bit verified and kept: of a checkpoint\nwhose "
      "state is in the run's store, of one of several ranks, or of any other. The run may "
      "train\nmeanwhile; if it removes the checkpoint before the copy is complete, the command "
      "fails and says so.\nOUT takes the place of a checkpoint in export, eval, generate and train "
      "--resume.");
  const auto options = std::make_shared<CopyOptions>();
  add_copy_options(*command, options->from, options->to, options->checkpoint);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
