#include "tools/cli/scrub_run.h"

#include <iostream>

#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/verify_checkpoint.h"
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
  std::cout << entry.name << ": " << report->files << " files, " << format_bytes(report->bytes);
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

}  // namespace

Result<bool> is_run_folder(aio::IoQueue& queue, const std::string& path) {
  // Whatever it is: anything but a folder of checkpoints is an error of scrub_run().
  SLUICE_ASSIGN_OR_RETURN(const auto kind, queue.backend().files().kind_of(folder_of(path)));
  return kind != aio::PathKind::kNothing;
}

Result<bool> scrub_run(aio::IoQueue& queue, const std::string& directory) {
  const engine::CheckpointFolder folder(queue, folder_of(directory));
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.list());
  bool sound = true;
  int checked = 0;
  for (const engine::CheckpointEntry& entry : list) {
    if (entry.leftover) {
      std::cout << entry.name << ": not finished, or being removed; it does not count\n";
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

}  // namespace sluice::tools
