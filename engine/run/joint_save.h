// JointSave: one checkpoint that all ranks of a run write at the same time. Each rank writes its
// own shards to its own files. The first rank creates the folder, and writes the manifest once the
// files of all ranks are durable.
//
// A save succeeds on all ranks or on none. If one rank cannot write, every rank returns its error,
// with its rank number. The first rank then removes the files, after all ranks have stopped
// writing. A killed rank leaves an incomplete folder, as any interrupted save does, since it has no
// manifest.
//
// Memory:  that of PartWriter, on each rank.
// Threads: one; all ranks call it at the same point in their sequence of collectives.
// Errors:  those of any rank, or of the link, which is unusable afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/model/model_layout.h"
#include "engine/runtime/run_state.h"
#include "engine/step/rank_reduction.h"

namespace sluice::engine {

// Waits for all ranks. Returns what each rank gave, or the error of the lowest rank that failed,
// with its number.
Result<std::vector<std::string>> agree_of_ranks(const RankLink& ranks, const Status& own,
                                                const std::string& given);
Status agree_of_ranks(const RankLink& ranks, const Status& own);

// The pieces that each of `world` ranks has of the parameters, which are numbered in flat order.
std::vector<StatePieces> pieces_of_ranks(const ModelLayout& model, int world);

class JointSave {
 public:
  using Append = std::function<Status(std::string_view parameter, const offload::ConstStateSlice&)>;
  // Appends all state of this rank, in order.
  using Source = std::function<Status(const Append&)>;

  // `model`, `queue` and what `ranks` links must outlive this. `moments`: stored_moments().
  JointSave(const ModelLayout& model, const RankLink& ranks, aio::IoQueue& queue, DType moments);
  ~JointSave();
  JointSave(const JointSave&) = delete;
  JointSave& operator=(const JointSave&) = delete;

  // For the first rank. `folder`: the checkpoint's, which is replaced; all ranks must see its
  // parent. Returns the bytes of all files.
  Result<std::uint64_t> lead(const std::string& folder, const CheckpointState& state,
                             const Source& source);
  // For each other rank.
  Status follow(const Source& source);

  // ---- the same in three parts, on all ranks
  // Creates the files. `folder` is the first rank's. After an error there is no save to continue.
  Status begin(const std::string& folder);
  // Writes this rank's files. The only part that may run on another thread: it needs no other rank.
  Status write(const Source& source);
  // `written`: the result of write(). `state`: the first rank's; null on the others.
  Result<std::uint64_t> commit(const Status& written, const CheckpointState* state);

 private:
  Status begin_files(const std::string& folder);
  Status begin_folder(const std::string& folder);
  Status gather_checksums();
  Status end(Status done);
  bool is_first() const { return ranks_.part.rank == 0; }

  const ModelLayout& model_;
  const RankLink ranks_;
  aio::IoQueue& queue_;
  const CheckpointOptions options_;
  std::shared_ptr<const CheckpointPlan> plan_;
  std::unique_ptr<CheckpointWriter> writer_;  // on the first rank
  Status added_;                      // on the first rank: whether it accepted the others' parts
  std::unique_ptr<PartWriter> part_;  // on the other ranks
};

// Gives all state that this rank has of a run.
JointSave::Source source_of(const RunState& own);

}  // namespace sluice::engine
