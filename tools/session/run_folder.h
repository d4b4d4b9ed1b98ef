// RunFolder: the directory of a run, while one process trains in it.
//
//   DIR/sluice-run.json which of these files are the run's: engine/checkpoint/run_directory.h
//   DIR/config.json     resolved, as engine/config/stored_config.h has it: the run is where it lies
//   DIR/tokenizer/      of the run's tokens, where it is known: engine/exchange/kept_tokenizer.h
//   DIR/base_model.json the model that the run began with, if any: engine/exchange/base_model.h
//   DIR/metrics.jsonl   a line a step; with run.log_part_mib also .1, .2: older parts of it
//   DIR/metrics-cut.jsonl   lines of steps that were run again
//   DIR/events.jsonl    what happened between steps: engine/observe/METRICS.md documents both
//   DIR/trace.json      with --trace
//   DIR/checkpoints/    engine/checkpoint/FORMAT.md
//   DIR/lock            held by who trains
//   DIR/sluice-ranks    while several ranks begin: whether all of them see this folder
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "tools/session/open_queue.h"

namespace sluice::tools {

class RunFolder {
 public:
  enum class Entry : std::uint8_t {
    kNew,        // results are not overwritten by accident: it must be empty
    kOverwrite,  // what a run has put there is to be removed, by clear()
    kResume,     // it stays
  };
  // Makes the folder, locks it, and removes what saves that were cut short left. kBusy: another
  // process trains there. A folder that holds other things than a run is refused, and so is one
  // where a run's file is a link; kOverwrite also where a checkpoint cannot be read.
  static Result<RunFolder> open(const std::string& directory, Entry entry,
                                aio::IoWatchdog& watchdog);

  std::string file(const std::string& name) const { return directory_ + "/" + name; }
  const std::string& path() const { return directory_; }

  // kNotFound where the path no longer leads to the folder: it was moved, or its drive unmounted.
  // What is written there now goes to another folder.
  Status check_there() const;
  engine::CheckpointFolder checkpoints() const;
  // The newest complete checkpoint of the run, if it has any. An error where the newest cannot be
  // read, or where the folder is no longer there: then it is unknown.
  Result<std::optional<engine::CheckpointEntry>> newest() const;
  // What --resume names: "newest", a checkpoint of this run ("step-000000012" or "12"), or the
  // folder of any checkpoint; complete or not. Nothing: newest, and there is none yet.
  Result<std::optional<engine::CheckpointEntry>> find_entry(const std::string& name) const;

  // Removes what the previous run has put there, and says so. Right before the first step of a new
  // run: until then the new run may be refused.
  Status clear() const;

  // A file with a content that there is nowhere else, for other processes to find by this path.
  struct Mark {
    std::string path;
    std::string content;
  };
  Result<Mark> leave_mark() const;
  Status remove_mark() const;

  aio::IoQueue& queue() const { return *files_.queue; }

 private:
  RunFolder() = default;

  std::string directory_;
  FileQueue files_;
  std::unique_ptr<aio::FileLock> lock_;
};

}  // namespace sluice::tools
