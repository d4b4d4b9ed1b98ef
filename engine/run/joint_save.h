// JointSave: one checkpoint written by all ranks of a run at the same time, each its own shards as
// files of its own; the first rank makes the folder, and writes the manifest once all files of all
// ranks are durable.
//
// It is made by all or by none: where one rank cannot write, every rank returns its error, with its
// number, and the first one removes what there is, once nobody writes any more. What a killed rank
// leaves is a left-over as of any save that was cut short, since it has no manifest.
//
// Memory:  PartWriter's, on each rank.
// Threads: one; all ranks call it at the same place among their collectives.
// Errors:  those of any rank, or of the link, which is of no further use then.
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

// What each of `world` ranks has of the parameters, which are numbered in flat order.
std::vector<StatePieces> pieces_of_ranks(const ModelLayout& model, int world);

class JointSave {
 public:
  using Append = std::function<Status(std::string_view parameter, const offload::ConstStateSlice&)>;
  // Gives all that this rank has, in order.
  using Source = std::function<Status(const Append&)>;

  // Both, and what `ranks` links, must outlive it. `moments`: stored_moments().
  JointSave(const ModelLayout& model, const RankLink& ranks, aio::IoQueue& queue, DType moments);
  ~JointSave();
  JointSave(const JointSave&) = delete;
  JointSave& operator=(const JointSave&) = delete;

  // Of the first rank. `folder`: the checkpoint's, which it replaces; all ranks see its parent. The
  // bytes of all files.
  Result<std::uint64_t> lead(const std::string& folder, const CheckpointState& state,
                             const Source& source);
  // Of each other rank.
  Status follow(const Source& source);

 private:
  // Once all are done: what each one gave; else the error of the first one that has failed.
  Result<std::vector<std::string>> agree(const Status& own, const std::string& given = "");
  Status begin(const std::string& folder);
  Status begin_folder(const std::string& folder);
  Status write_part(const Source& source);
  Status gather_checksums();
  Status write(const std::string& folder, const Source& source);
  Status end(Status done);
  bool is_first() const { return ranks_.part.rank == 0; }

  const ModelLayout& model_;
  const RankLink ranks_;
  aio::IoQueue& queue_;
  const CheckpointOptions options_;
  std::shared_ptr<const CheckpointPlan> plan_;
  std::unique_ptr<CheckpointWriter> writer_;  // of the first rank
  Status added_;                              // likewise: whether it took the others' parts
  std::unique_ptr<PartWriter> part_;          // of the others
};

// All that this rank has of a run.
JointSave::Source source_of(const RunState& own);

}  // namespace sluice::engine
