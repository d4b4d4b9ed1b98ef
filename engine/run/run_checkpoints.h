// RunCheckpoints: saves a run that trains, while it does where memory allows, and keeps the newest
// checkpoints of its directory.
//
// Foreground: save() streams the state from its tiers to the disk; training stops for as long. With
//             several ranks always, and all of them write (joint_save.h).
// Background: save() copies the state into memory of its own (12 bytes a parameter, taken once),
//             and a thread writes that while training continues. One save at a time: the next
//             save(), and wait(), wait for it.
//
// A save removes the oldest complete checkpoints beyond keep_last of those up to its own step;
// later ones, and what cannot be read, stay. One that fails leaves the others as they are, and what
// it had written is removed. Where the directory is no longer the run's, a save writes nothing.
//
// Threads: one; the thread of a background save is its own.
// Errors:  those of the copy as values of save() (it reads state: the run cannot continue after
//          such an error); those of the writing in SavedCheckpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/run/saved_run.h"
#include "engine/run/state_image.h"

namespace sluice::engine {

struct SavedCheckpoint {
  std::int64_t step = 0;
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t stopped_ns = 0;       // how long training stood still for it
  std::int64_t took_ns = 0;          // until it was durable
  Status status;                     // not ok: it does not exist
  bool directory_lost = false;       // because the run's directory is not where it was
  std::vector<std::string> removed;  // other ones, by name
  Status pruned;                     // of their removal
};

class RunCheckpoints {
 public:
  struct Options {
    std::string directory;  // of the run
    int keep_last = 0;      // 0: all
    bool background = false;
    // An error where `directory` is no longer the one that the run began in: it was moved, or
    // its drive unmounted, and a save would make another. On the thread that saves.
    std::function<Status()> check_directory = {};
  };
  // Of the last step, if known.
  struct Scores {
    std::optional<double> loss;
    std::optional<double> validation_loss;
  };

  // Both must outlive it. With options.background the copy's memory is taken here.
  static Result<std::unique_ptr<RunCheckpoints>> create(SavedRun& run, aio::IoQueue& queue,
                                                        const Options& options);
  ~RunCheckpoints();  // waits for a save in progress
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // What the copy of a background save takes.
  static std::uint64_t image_bytes(const ModelLayout& model, DType moments);
  static std::string folder_of(const std::string& directory) { return directory + "/checkpoints"; }

  // Saves the state after the last step. The previous save's result is in finished() before that.
  Status save(const Scores& scores);
  // The result of each save, once, in order; those in progress are left out.
  std::vector<SavedCheckpoint> finished();
  // Waits until no save is in progress.
  void wait();
  // Before the first save of a resumed run: removes what lies beyond keep_last, as a save does,
  // because the previous process was killed before it could, or kept more. Says so first. What
  // cannot be removed stays, as after a save.
  Status prune();

 private:
  RunCheckpoints(SavedRun& run, aio::IoQueue& queue, const Options& options);
  // What write() does not get from the image: it must not look at the run while that trains.
  struct Plan {
    CheckpointState state;
    std::vector<TensorSpec> parameters;
    std::int64_t begin_ns = 0;
  };
  using Source = std::function<Status(const TakeState&)>;
  SavedCheckpoint write(const Plan& plan, const Source& source) const;
  Status check_directory() const;
  Status tidy(SavedCheckpoint& saved) const;
  Status write_files(const Plan& plan, const Source& source, SavedCheckpoint& saved) const;

  SavedRun& run_;
  aio::IoQueue& queue_;
  const Options options_;
  std::unique_ptr<StateImage> image_;  // null: in the foreground
  std::vector<SavedCheckpoint> finished_;
  std::int64_t stopped_ns_ = 0;  // for the save in progress
  std::future<SavedCheckpoint> going_on_;
};

}  // namespace sluice::engine
