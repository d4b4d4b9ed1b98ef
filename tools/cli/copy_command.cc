#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "aio/units.h"
#include "engine/checkpoint/copy_checkpoint.h"
#include "tools/cli/command.h"
#include "tools/session/checkpoint_argument.h"
#include "tools/session/open_queue.h"
#include "tools/session/show_share.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

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

// A link stands for the folder that it names, on that folder's drive.
Result<std::string> named_folder(const std::string& out) {
  std::string path = without_last_slash(out);
  if (!fs::is_symlink(path)) return path;
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (!error) return target.string();
  return Error(ErrorCode::kInvalidArgument,
               path + " is a link to a folder that is not there: name the folder");
}

Result<int> run(const CopyOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const std::string to, named_folder(options.to));
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
