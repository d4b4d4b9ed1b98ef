// ShardPlan: which parameters lie in which file of each family, and the headers of these files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

struct ShardPlan {
  struct File {
    std::string header;
    std::uint64_t bytes = 0;
  };
  std::vector<TensorInfo> tensors;  // as F32
  File master;
  File moment;  // of each of the two

  const File& file(Family family) const { return family == Family::kMaster ? master : moment; }
};

struct ShardOptions {
  std::uint64_t max_bytes = 0;  // of data in the master's file
  DType moments = DType::kF32;
};

// In the order given, as many to a shard as fit, and at least one; masters as F32. kInvalidArgument
// for names that clash, and for no parameters or too many shards.
Result<std::vector<ShardPlan>> plan_shards(std::span<const TensorSpec> parameters,
                                           const ShardOptions& options);

}  // namespace sluice::engine
