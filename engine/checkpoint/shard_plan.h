// CheckpointPlan: which files a checkpoint has, what lies in each, and which writer writes it: one
// rank all of it, or several each its own pieces. All writers make the same plan for themselves.
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
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// A shard: a file of each field of the state, with the same pieces of parameters.
struct ShardPlan {
  struct File {
    std::string header;
    std::uint64_t bytes = 0;
  };
  StatePieces pieces;
  std::vector<TensorInfo> tensors;  // of the pieces, as F32
  File master;
  File moment;  // of each of them

  const File& file(const offload::StateField& field) const {
    return field.role == offload::StateField::Role::kMaster ? master : moment;
  }
};

struct ShardOptions {
  std::uint64_t max_bytes = 0;  // of data in the master's file
  DType moments = DType::kF32;
};

struct CheckpointPlan {
  std::vector<TensorInfo> parameters;     // in flat order, as F32
  std::vector<ShardPlan> shards;          // writer by writer
  std::vector<std::size_t> first_shards;  // of each writer; behind the last one, all of them

  int writers() const { return static_cast<int>(first_shards.size()) - 1; }
  // A file's place in the manifest's list, and so in its checksums.
  std::size_t file_number(std::size_t field, std::size_t shard) const {
    return field * shards.size() + shard;
  }
  std::uint64_t bytes() const;  // of all shards
};

// Of one writer: in the order given, as many to a shard as fit, and at least one; masters as F32.
// kInvalidArgument for names that clash, and for no parameters or too many shards.
Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       const ShardOptions& options);
// Of one writer for each element of `of_writers`; one without pieces has no shard.
// kInvalidArgument, besides, where they are not all of the state once: check_pieces().
Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       std::span<const StatePieces> of_writers,
                                       const ShardOptions& options);

}  // namespace sluice::engine
