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

// `tensors`: as any dtype.
Result<ShardPlan::File> file_of(std::span<const TensorSpec> tensors, DType dtype) {
  std::vector<TensorSpec> specs(tensors.begin(), tensors.end());
  for (TensorSpec& spec : specs) spec.dtype = dtype;
  SLUICE_ASSIGN_OR_RETURN(const auto infos, lay_out(specs));
  ShardPlan::File file{.header = make_safetensors_header(infos, {{"format", "pt"}})};
  file.bytes = file.header.size();
  for (const TensorInfo& tensor : infos) file.bytes += tensor.size_bytes;
  return file;
}

}  // namespace

Result<std::vector<ShardPlan>> plan_shards(std::span<const TensorSpec> parameters,
                                           const ShardOptions& options) {
  if (parameters.empty())
    return Error(ErrorCode::kInvalidArgument, "a model without parameters has no checkpoint");
  std::vector<TensorSpec> specs(parameters.begin(), parameters.end());
  for (TensorSpec& spec : specs) spec.dtype = DType::kF32;
  SLUICE_ASSIGN_OR_RETURN(const auto whole, lay_out(specs));
  std::vector<ShardPlan> shards;
  for (std::size_t first = 0; first < whole.size();) {
    const std::size_t count = shard_length(std::span(whole).subspan(first), options.max_bytes);
    ShardPlan shard;
    const auto of_shard = std::span(specs).subspan(first, count);
    SLUICE_ASSIGN_OR_RETURN(shard.tensors, lay_out(of_shard));
    SLUICE_ASSIGN_OR_RETURN(shard.master, file_of(of_shard, DType::kF32));
    SLUICE_ASSIGN_OR_RETURN(shard.moment, file_of(of_shard, options.moments));
    shards.push_back(std::move(shard));
    first += count;
  }
  if (shards.size() > kMaxShards)
    return Error(ErrorCode::kInvalidArgument,
                 "with at most " + format_bytes(options.max_bytes) + " in a file there would be " +
                     std::to_string(shards.size()) + " files; allow more");
  return shards;
}

}  // namespace sluice::engine
