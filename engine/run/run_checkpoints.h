// RunCheckpoints: saves a run that trains, during training where memory allows, and keeps the
// newest checkpoints of its directory.
//
// Foreground: save() streams the state from its tiers to the disk, and training stops for that
//             time. If there are several ranks, all of them write (joint_save.h).
// Background: save() copies the state into memory of its own (image_bytes(), allocated once), and a
//             thread writes the copy while training continues. There is one save at a time: the
//             next save(), and wait(), wait for it. If there are several ranks, each copies and
//             writes its own state (joint_copy_save.h), and finished() ends the save after the step
//             in which the last of them was done.
// In place:   (SavedRun::saves_in_place()) save() freezes the state that is on NVMe in its store,
//             and streams the rest. Once the manifest is durable, earlier checkpoints are removed,
//             and then the store may overwrite the earlier one's records.
//
// A save removes the oldest complete checkpoints beyond keep_last, counting only those up to its
// own step. With keep_best the one of them with the lowest validation loss stays. Later checkpoints
// and unreadable ones stay. A failed save leaves the other checkpoints as they are, and its own
// files are removed. If the directory is no longer the run's, a save
// writes nothing.
//
// Threads: one; a background save has a thread of its own.
// Errors:  save() returns those of the copy: it reads the state, and the run cannot continue after
//          such an error. SavedCheckpoint has those of the writing.
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
  std::uint64_t bytes = 0;  // of its files
  std::uint64_t in_place_bytes = 0;
  std::int64_t stopped_ns = 0;       // how long training was stopped
  std::int64_t took_ns = 0;          // until it was durable
  Status status;                     // not ok: there is no checkpoint
  bool directory_lost = false;       // the run's directory was moved or unmounted
  std::vector<std::string> removed;  // removed checkpoints, by name
  Status pruned;                     // of their removal
};

class RunCheckpoints {
 public:
  struct Options {
    std::string directory;   // the run's
    int keep_last = 0;       // 0: keep all
    bool keep_best = false;  // also the one with the lowest validation loss
    bool background = false;
    std::string placement = {};  // StoredRecords::placement, for a save in place.
    // An error if `directory` is no longer the one that the run began in: it was moved, or its
    // drive unmounted, and a save would create another. Called on the thread that saves.
    std::function<Status()> check_directory = {};
  };
  // Losses of the last step, if available.
  struct Scores {
    std::optional<double> loss;
    std::optional<double> validation_loss;
    std::optional<StoredEvaluations> evaluations = {};  // of the whole run, to be stored
  };

  // `run` and `queue` must outlive this. With options.background the copy's memory is allocated
  // here.
  static Result<std::unique_ptr<RunCheckpoints>> create(SavedRun& run, aio::IoQueue& queue,
                                                        const Options& options);
  ~RunCheckpoints();  // waits for a save in progress
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // Memory of a background save's copy, on this rank.
  static std::uint64_t image_bytes(const ModelLayout& model, DType moments,
                                   const offload::RankPart& ranks = {});
  static std::string folder_of(const std::string& directory) { return directory + "/checkpoints"; }

  // Saves the state after the last step. Afterwards finished() has the result of the previous save.
  Status save(const Scores& scores);
  // The results of finished saves, each returned once, in order.
  std::vector<SavedCheckpoint> finished();
  // Waits until no save is in progress.
  void wait();
  // Call it before the first save of a resumed run. Removes checkpoints beyond keep_last, as a save
  // does, because the previous process was killed before it could, or kept more. Logs this first.
  // Checkpoints that cannot be removed stay, as after a save.
  Status prune();

 private:
  RunCheckpoints(SavedRun& run, aio::IoQueue& queue, const Options& options);
  // What write() does not get from the image: it must not access the run while that trains.
  struct Plan {
    CheckpointState state;
    std::vector<TensorSpec> parameters;
    std::int64_t begin_ns = 0;
  };
  using Source = std::function<Status(const TakeState&)>;
  SavedCheckpoint write(const Plan& plan, const Source& source) const;
  Status save_copies(const Plan& plan);
  Status begin_copies(SavedCheckpoint& saved) const;
  // Completes the result of a save that has ended.
  SavedCheckpoint ended(const Plan& plan, SavedCheckpoint saved) const;
  Status check_directory() const;
  Status tidy(SavedCheckpoint& saved) const;
  Status write_files(const Plan& plan, const Source& source, SavedCheckpoint& saved) const;
  Status write_beside_store(const Plan& plan, const RunState& state, const StoredRecords& records,
                            SavedCheckpoint& saved) const;
  // Whether a manifest in the checkpoint's folder names the frozen generation.
  Result<bool> is_named(const std::string& folder, const swap::FrozenStore& store) const;
  Status save_in_place(const Plan& plan, SavedCheckpoint& saved) const;

  SavedRun& run_;
  aio::IoQueue& queue_;
  const Options options_;
  std::unique_ptr<StateImage> image_;  // null: in the foreground, or several ranks
  LedCopySave* copies_ = nullptr;      // null: in the foreground, or one rank
  std::vector<SavedCheckpoint> finished_;
  std::int64_t stopped_ns_ = 0;  // for the save in progress
  std::future<SavedCheckpoint> going_on_;
  // The save of several ranks in progress.
  struct CopiesSave {
    Plan plan;
    SavedCheckpoint saved;
  };
  std::optional<CopiesSave> copies_going_on_;
};

}  // namespace sluice::engine
