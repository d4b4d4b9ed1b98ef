// RunFolder: the directory of a run, while one process trains in it.
//
// - DIR/sluice-run.json which of these files are the run's: engine/checkpoint/run_directory.h
// - DIR/config.json     resolved, without run.dir: engine/config/stored_config.h
// - DIR/tokenizer/      the tokenizer of the run's data, if known: engine/exchange/kept_tokenizer.h
// - DIR/base_model.json the model that the run began with, if any: engine/exchange/base_model.h
// - DIR/metrics.jsonl   one line per step; with run.log_part_mib also older parts: .1, .2
// - DIR/metrics-cut.jsonl   lines of steps that were run again
// - DIR/events.jsonl    events between steps: engine/observe/METRICS.md documents both
// - DIR/trace.json      with --trace
// - DIR/checkpoints/    engine/checkpoint/FORMAT.md
// - DIR/lock            held by the training process
// - DIR/sluice-ranks    while several ranks begin: shows whether all of them see this folder
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/observe/metrics_log.h"
#include "tools/session/open_queue.h"

namespace sluice::tools {

class RunFolder {
 public:
  enum class Entry : std::uint8_t {
    kNew,        // must be empty: results are not overwritten by accident
    kOverwrite,  // clear() removes what an earlier run left
    kResume,     // the contents stay
  };
  // Creates and locks the folder, and removes the remains of interrupted saves. kBusy: another
  // process trains there. Refuses a folder that holds other things than a run, or where one of the
  // run's files is a link; kOverwrite also refuses a checkpoint that cannot be read.
  static Result<RunFolder> open(const std::string& directory, Entry entry,
                                aio::IoWatchdog& watchdog);

  std::string file(const std::string& name) const { return directory_ + "/" + name; }
  const std::string& path() const { return directory_; }

  // kNotFound if the path no longer leads to the folder: it was moved, or its drive unmounted.
  // Files written by this path would then go to another folder.
  Status check_there() const;
  engine::CheckpointFolder checkpoints() const;
  // The newest complete checkpoint of the run, if any. An error if the newest cannot be read, or if
  // the folder has disappeared.
  Result<std::optional<engine::CheckpointEntry>> newest() const;
  // The checkpoint that --resume names: "newest", a checkpoint of this run ("step-000000012" or
  // "12"), or any checkpoint's folder. It may be incomplete. nullopt for "newest" if there is none
  // yet.
  Result<std::optional<engine::CheckpointEntry>> find_entry(const std::string& name) const;

  // Removes what the previous run left, and says so. Called right before the first step of a new
  // run, which may be refused until then. A checkpoint in the run's store was removed before, after
  // the plan (engine/preflight/leftovers.h).
  Status clear() const;

  // A file with unique content, which other processes look for by this path.
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

// take_folder: prepares the run's folder for a new attempt of the run, once nothing can be refused
// any longer. What the new attempt replaces or does not continue is moved away or, with
// --overwrite, removed.
//
// Files that need disk space are written before checkpoints and metrics are moved, so that a full
// disk refuses the run and leaves them unchanged. With --overwrite this holds for config.json only,
// since removing the old run makes room for the rest.
struct LocatedRun;

// Also writes config.json and the tokenizer, and writes to `says` what was set aside. The returned
// log continues after the last completed step.
Result<std::unique_ptr<engine::MetricsLog>> take_folder(const LocatedRun& located,
                                                        std::ostream& notices);

}  // namespace sluice::tools
