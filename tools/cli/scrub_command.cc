#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "swap/store_inventory.h"
#include "tools/cli/command.h"
#include "tools/session/open_queue.h"
#include "tools/support/progress_line.h"

namespace sluice::tools {
namespace {

std::string folder_of(const std::string& directory) { return directory + "/checkpoints"; }

Result<bool> scrub_one(aio::IoQueue& queue, const engine::CheckpointEntry& entry) {
  ProgressLine progress;
  engine::VerifyOptions options;
  options.on_progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(
        "checking " + entry.name,
        {.fraction = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total)});
    return true;
  };
  auto report = engine::verify_checkpoint(queue, entry.path, options);
  progress.clear();
  if (!report.ok()) return std::move(report).error();
  if (report->removed) {
    std::cout << entry.name << ": its run removed it while it was checked\n";
    return true;
  }
  std::cout << entry.name << ": " << report->files << " files, ";
  if (report->records > 0) std::cout << report->records << " records in its run's store, ";
  std::cout << format_bytes(report->bytes);
  if (report->damaged.empty()) {
    std::cout << ", every checksum is right\n";
    return true;
  }
  std::cout << ", DAMAGED in " << report->damaged.size()
            << (report->damaged.size() == 1 ? " place\n" : " places\n");
  for (const engine::DamagedRange& damaged : report->damaged)
    std::cout << "  BAD " << damaged.problem << "\n";
  return false;
}

// Whether `path` is a run's directory: it has a checkpoints folder.
Result<bool> is_run_folder(aio::IoQueue& queue, const std::string& path) {
  // Any kind of path counts here: scrub_run() refuses what is not a folder of checkpoints.
  SLUICE_ASSIGN_OR_RETURN(const auto kind, queue.backend().files().kind_of(folder_of(path)));
  return kind != aio::PathKind::kNothing;
}

// Reads every byte of the run's checkpoints and prints those that are damaged or cannot be checked.
// Returns whether all are sound.
Result<bool> scrub_run(aio::IoQueue& queue, const std::string& directory) {
  const engine::CheckpointFolder folder(queue, folder_of(directory));
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.list());
  bool sound = true;
  int checked = 0;
  for (const engine::CheckpointEntry& entry : list) {
    if (entry.leftover) {
      std::cout << entry.name << ": not finished, or being removed; it is ignored\n";
      continue;
    }
    if (!entry.complete() && entry.status.error().code() == ErrorCode::kNewerVersion) {
      std::cout << entry.name << ": NOT CHECKED, " << entry.status.error().message() << "\n";
      sound = false;
      ++checked;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const bool one, scrub_one(queue, entry));
    sound = sound && one;
    ++checked;
  }
  if (checked == 0) std::cout << "there are no checkpoints in " << folder.path() << "\n";
  return sound;
}

struct ScrubOptions {
  std::vector<std::string> paths;
  std::string run;
  bool clean = false;
  bool remove = false;
};

Status list_all(aio::IoQueue& queue, const std::vector<std::string>& paths) {
  bool any = false;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(const auto runs, swap::find_runs(queue, path));
    for (const swap::FoundRun& run : runs) std::cout << swap::describe(run) << "\n";
    any |= !runs.empty();
  }
  if (!any) std::cout << "there are no state stores\n";
  return {};
}

std::uint64_t say_removed(const std::vector<swap::FoundRun>& removed) {
  std::uint64_t bytes = 0;
  for (const swap::FoundRun& run : removed) {
    std::cout << "removed: " << swap::describe(run) << "\n";
    bytes += run.bytes;
  }
  return bytes;
}

Status clean(aio::IoQueue& queue, const std::vector<std::string>& paths) {
  SLUICE_ASSIGN_OR_RETURN(const auto sweep, swap::remove_leftovers(queue, paths));
  const std::uint64_t bytes = say_removed(sweep.removed);
  std::cout << sweep.removed.size() << " leftovers removed, " << format_bytes(bytes) << "\n";
  for (const swap::FoundRun& run : sweep.kept) std::cout << "kept: " << swap::describe(run) << "\n";
  return {};
}

// Returns whether the checkpoint is sound.
Result<bool> scrub_one(aio::IoQueue& queue, const ScrubOptions& options) {
  const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
  SLUICE_ASSIGN_OR_RETURN(const auto executor, aio::make_executor(threads));
  ProgressLine progress;
  const auto on_progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update("checking",
                    {.fraction = static_cast<double>(done) / static_cast<double>(total)});
  };
  auto report = swap::scrub(queue, *executor, options.paths, options.run, on_progress);
  progress.clear();
  if (!report.ok()) return std::move(report).error();
  std::cout << report->records << " records, " << format_bytes(report->bytes)
            << ", of a run that has ended: they may not be from the same step\n";
  if (report->never_written > 0) std::cout << report->never_written << " were never written\n";
  for (const swap::BadRecord& bad : report->bad)
    std::cout << "BAD " << bad.name << ": " << bad.problem << "\n";
  if (report->bad.empty()) {
    std::cout << "every checksum is right\n";
    return true;
  }
  std::cout << report->bad.size() << " bad records\n";
  return false;
}

// Handles the options about stores on NVMe paths. Returns whether everything checked is sound.
Result<bool> look_at_stores(aio::IoQueue& queue, const ScrubOptions& options) {
  if (options.remove) {
    SLUICE_ASSIGN_OR_RETURN(const auto removed,
                            swap::remove_run(queue, options.paths, options.run));
    std::cout << format_bytes(say_removed(removed)) << " removed\n";
    return true;
  }
  if (!options.run.empty()) return scrub_one(queue, options);
  SLUICE_RETURN_IF_ERROR(options.clean ? clean(queue, options.paths)
                                       : list_all(queue, options.paths));
  return true;
}

Result<int> run(const ScrubOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  aio::IoQueue& queue = *files.queue;
  // Run directories first; all other paths are NVMe paths.
  ScrubOptions of_stores = options;
  of_stores.paths.clear();
  std::vector<std::string> runs;
  for (const std::string& path : options.paths) {
    SLUICE_ASSIGN_OR_RETURN(const bool is_run, is_run_folder(queue, path));
    (is_run ? runs : of_stores.paths).push_back(path);
    if (is_run) continue;
    SLUICE_ASSIGN_OR_RETURN(
        const bool is_checkpoint,
        queue.backend().files().exists(path + "/" + std::string(engine::kManifestName)));
    if (is_checkpoint)
      return Error(ErrorCode::kInvalidArgument,
                   path + " is one checkpoint: name the folder of its run");
  }
  if (of_stores.paths.empty() && (options.clean || !options.run.empty()))
    return Error(ErrorCode::kInvalidArgument,
                 std::string(options.clean ? "--remove-leftovers" : "--run") +
                     " is for NVMe paths, but the paths given are folders of runs");
  bool sound = true;
  for (const std::string& path : runs) {
    SLUICE_ASSIGN_OR_RETURN(const bool one, scrub_run(queue, path));
    sound = sound && one;
  }
  if (!of_stores.paths.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const bool stores, look_at_stores(queue, of_stores));
    sound = sound && stores;
  }
  return sound ? 0 : kExitDamaged;
}

}  // namespace

Command add_scrub_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "scrub",
      "Verify every byte of checkpoints and stores; list stores, remove those of killed runs");
  command->footer(
      "  sluice scrub runs/demo                  checks every checkpoint, names damaged files\n  "
      "sluice scrub /nvme0 /nvme1              lists stores, their owners and integrity\n  sluice "
      "scrub /nvme0 /nvme1 --run NAME   checks every record, names damaged ones\n  sluice scrub "
      "/nvme0 --remove-leftovers  removes only stores of runs that were killed,\n                  "
      "                        and says why it keeps the others\n  sluice scrub /nvme0 --run NAME "
      "--remove removes that store and its contents, unless\n                                      "
      "    it is in use here");
  const auto options = std::make_shared<ScrubOptions>();
  command
      ->add_option("PATH", options->paths,
                   "Folders of runs, and NVMe paths as in budget.nvme_paths")
      ->required();
  auto* const one = command->add_option("--run", options->run,
                                        "Checks the store of this run: /nvme0/sluice-NAME");
  command
      ->add_flag(
          "--remove", options->remove,
          "Removes the store without a check, even if its run may be active on another machine")
      ->needs(one);
  command
      ->add_flag("--remove-leftovers", options->clean,
                 "Removes the stores of killed runs, which are useless")
      ->excludes(one);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
