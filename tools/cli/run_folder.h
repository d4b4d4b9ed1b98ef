// RunFolder: the directory of a run, while one process trains in it.
//
//   DIR/config.json     resolved
//   DIR/metrics.jsonl   a line a step
//   DIR/trace.json      with --trace
//   DIR/checkpoints/    engine/checkpoint/FORMAT.md
//   DIR/lock            held by who trains
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "tools/cli/open_queue.h"

namespace sluice::tools {

class RunFolder {
 public:
  enum class Entry : std::uint8_t {
    kNew,        // somebody's results are not overwritten by accident: it must be empty
    kOverwrite,  // what a run has put there is removed
    kResume,     // it stays
  };
  // Makes the folder, locks it, and clears it as `entry` says. kBusy: another process trains there.
  static Result<RunFolder> open(const std::string& directory, Entry entry,
                                aio::IoWatchdog& watchdog);

  std::string file(const std::string& name) const { return directory_ + "/" + name; }

  // What --resume names: "newest", a checkpoint of this run ("step-000000012" or "12"), or the
  // folder of any checkpoint. Nothing: newest, and there is none yet.
  Result<std::optional<engine::CheckpointEntry>> find(const std::string& name) const;
  // A damaged checkpoint's error, with what to do: to go on from the one before.
  Error with_advice(Error error, std::int64_t step) const;

  aio::IoQueue& queue() const { return *files_.queue; }

 private:
  RunFolder() = default;
  Status clear();

  std::string directory_;
  FileQueue files_;
  std::unique_ptr<aio::FileLock> lock_;
};

}  // namespace sluice::tools
