// CheckpointPlan: the files of a checkpoint, their contents, and the writer of each. One rank
// writes everything, or each of several ranks its own pieces. Every writer computes the same plan.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/state_pieces.h"
#include "engine/checkpoint/stored_records.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// A shard: one file per field of the state, all with the same pieces of parameters.
struct ShardPlan {
  struct File {
    std::string header;
    std::uint64_t bytes = 0;
  };
  StatePieces pieces;
  std::vector<TensorInfo> tensors;  // the pieces, as F32
  File master;
  File moment;  // for each of the two moments

  const File& file(const offload::StateField& field) const {
    return field.role == offload::StateField::Role::kMaster ? master : moment;
  }
};

struct ShardOptions {
  std::uint64_t max_bytes = 0;  // tensor data in the master's file
  DType moments = DType::kF32;
};

struct CheckpointPlan {
  std::vector<TensorInfo> parameters;     // in flat order, as F32
  std::vector<ShardPlan> shards;          // ordered by writer
  std::vector<std::size_t> first_shards;  // by writer; the last entry is the number of shards

  int writers() const { return static_cast<int>(first_shards.size()) - 1; }
  // A file's index in the manifest's list, which is part of its checksums.
  std::size_t file_number(std::size_t field, std::size_t shard) const {
    return field * shards.size() + shard;
  }
  std::uint64_t bytes() const;  // of all shards
};

// For one writer. A shard gets as many parameters as fit, in the given order, and at least one;
// masters are F32. kInvalidArgument for conflicting names, no parameters or too many shards.
Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       const ShardOptions& options);
// For one writer per element of `of_writers`; a writer without pieces has no shard.
// kInvalidArgument also if the pieces do not cover the whole state exactly once: check_pieces().
Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       std::span<const StatePieces> of_writers,
                                       const ShardOptions& options);
// For one writer of the pieces that are not in `records`. There may be none, and then no shards.
Result<CheckpointPlan> plan_beside(std::span<const TensorSpec> parameters,
                                   const StatePieces& written, const StoredRecords& records,
                                   const ShardOptions& options);

}  // namespace sluice::engine
