// JointCopySave: a checkpoint that all ranks of a run write while they train. Each rank copies its
// state into memory of its own (state_image.h), and a thread of each writes that copy. Ranks talk
// to each other only between steps, on the training thread: to begin, and again once all have
// written.
//
// Memory:  a StateImage, taken once by create(), and during a save that of JointSave.
// Threads: one, but for the thread that writes. All ranks make the same calls in the same order,
//          is_written() excepted.
// Errors:  those of JointSave; kCancelled if it is destroyed during a save. Its checkpoint is then
//          incomplete, as after any interrupted save.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/run/joint_save.h"
#include "engine/run/saved_run.h"
#include "engine/run/state_image.h"
#include "engine/step/rank_reduction.h"

namespace sluice::engine {

class JointCopySave {
 public:
  // `run`, `queue` and what `ranks` links must outlive it. kOutOfMemory on every rank if one has no
  // room for its copy.
  static Result<std::unique_ptr<JointCopySave>> create(SavedRun& run, const RankLink& ranks,
                                                       aio::IoQueue& queue);
  ~JointCopySave();  // ends a thread that writes
  JointCopySave(const JointCopySave&) = delete;
  JointCopySave& operator=(const JointCopySave&) = delete;

  // Copies the state after the last step. It reads the state, so that the run cannot continue after
  // an error.
  Status copy();
  // Begins to write the copy. `folder`: as for JointSave::begin(). After an error nothing is
  // written, and end() must not be called.
  Status begin(const std::string& folder);
  bool is_saving() const { return save_ != nullptr; }
  // Whether this rank's thread is done, with or without success; true between saves.
  bool is_written() const;
  // Waits for the threads of all ranks. `state`: the first rank's; null on the others. Returns the
  // bytes of all files on the first rank.
  Result<std::uint64_t> end(const CheckpointState* state);

 private:
  JointCopySave(SavedRun& run, const RankLink& ranks, aio::IoQueue& queue);

  SavedRun& run_;
  const RankLink ranks_;
  aio::IoQueue& queue_;
  std::unique_ptr<StateImage> image_;
  std::unique_ptr<JointSave> save_;  // during a save
  std::atomic<bool> is_cancelled_ = false;
  std::future<Status> writing_;  // ends before save_ and image_
};

}  // namespace sluice::engine
