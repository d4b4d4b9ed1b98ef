// ShardPlan: which parameters lie in which file of a family, and the header of that file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

struct ShardPlan {
  std::vector<TensorInfo> tensors;
  std::string header;
  std::uint64_t file_bytes = 0;
};

// In the order given, as many to a shard as fit into max_shard_bytes of data, and at least one; all
// as F32. kInvalidArgument for names that clash, and for no parameters or too many shards.
Result<std::vector<ShardPlan>> plan_shards(std::span<const TensorSpec> parameters,
                                           std::uint64_t max_shard_bytes);

}  // namespace sluice::engine
