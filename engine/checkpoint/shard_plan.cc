#include "engine/checkpoint/shard_plan.h"

#include <utility>

#include "aio/units.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

std::size_t shard_length(std::span<const TensorInfo> tensors, std::uint64_t max_bytes) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].size_bytes;
    if (i > 0 && bytes > max_bytes) return i;
  }
  return tensors.size();
}

}  // namespace

Result<std::vector<ShardPlan>> plan_shards(std::span<const TensorSpec> parameters,
                                           std::uint64_t max_shard_bytes) {
  if (parameters.empty())
    return Error(ErrorCode::kInvalidArgument, "a model without parameters has no checkpoint");
  std::vector<TensorSpec> specs(parameters.begin(), parameters.end());
  for (TensorSpec& spec : specs) spec.dtype = DType::kF32;
  SLUICE_ASSIGN_OR_RETURN(const auto whole, lay_out(specs));
  std::vector<ShardPlan> shards;
  for (std::size_t first = 0; first < whole.size();) {
    const std::size_t count = shard_length(std::span(whole).subspan(first), max_shard_bytes);
    ShardPlan shard;
    SLUICE_ASSIGN_OR_RETURN(shard.tensors, lay_out(std::span(specs).subspan(first, count)));
    shard.header = make_safetensors_header(shard.tensors, {{"format", "pt"}});
    shard.file_bytes = shard.header.size();
    for (const TensorInfo& tensor : shard.tensors) shard.file_bytes += tensor.size_bytes;
    shards.push_back(std::move(shard));
    first += count;
  }
  if (shards.size() > kMaxShards)
    return Error(ErrorCode::kInvalidArgument,
                 "with at most " + format_bytes(max_shard_bytes) + " in a file there would be " +
                     std::to_string(shards.size()) + " files; allow more");
  return shards;
}

}  // namespace sluice::engine
