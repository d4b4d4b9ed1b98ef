#include "engine/checkpoint/shard_plan.h"

#include <utility>

#include "aio/units.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

std::size_t shard_length(std::span<const StatePiece> pieces, std::uint64_t max_bytes) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    bytes += pieces[i].elements * sizeof(float);
    if (i > 0 && bytes > max_bytes) return i;
  }
  return pieces.size();
}

// The dtypes of `tensors` are ignored.
Result<ShardPlan::File> file_of(std::span<const TensorSpec> tensors, DType dtype) {
  std::vector<TensorSpec> specs(tensors.begin(), tensors.end());
  for (TensorSpec& spec : specs) spec.dtype = dtype;
  SLUICE_ASSIGN_OR_RETURN(const auto infos, lay_out(specs));
  ShardPlan::File file{.header = make_safetensors_header(infos, {{"format", "pt"}})};
  file.bytes = file.header.size();
  for (const TensorInfo& tensor : infos) file.bytes += tensor.size_bytes;
  return file;
}

Result<CheckpointPlan> begin_plan(std::span<const TensorSpec> parameters) {
  if (parameters.empty())
    return Error(ErrorCode::kInvalidArgument, "a model without parameters has no checkpoint");
  std::vector<TensorSpec> specs(parameters.begin(), parameters.end());
  for (TensorSpec& spec : specs) spec.dtype = DType::kF32;
  CheckpointPlan plan{.first_shards = {0}};
  SLUICE_ASSIGN_OR_RETURN(plan.parameters, lay_out(specs));
  return plan;
}

Status add_writer(std::span<const StatePiece> pieces, const ShardOptions& options,
                  CheckpointPlan& plan) {
  while (!pieces.empty()) {
    const std::size_t count = shard_length(pieces, options.max_bytes);
    ShardPlan shard;
    shard.pieces.assign(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(count));
    std::vector<TensorSpec> specs;
    specs.reserve(count);
    for (const StatePiece& piece : shard.pieces)
      specs.push_back(piece_tensor(plan.parameters[piece.parameter], piece));
    SLUICE_ASSIGN_OR_RETURN(shard.tensors, lay_out(specs));
    SLUICE_ASSIGN_OR_RETURN(shard.master, file_of(specs, DType::kF32));
    SLUICE_ASSIGN_OR_RETURN(shard.moment, file_of(specs, options.moments));
    plan.shards.push_back(std::move(shard));
    pieces = pieces.subspan(count);
  }
  plan.first_shards.push_back(plan.shards.size());
  if (plan.shards.size() <= kMaxShards) return {};
  return Error(ErrorCode::kInvalidArgument,
               "with at most " + format_bytes(options.max_bytes) + " per file there would be " +
                   std::to_string(plan.shards.size()) + " files; allow more");
}

}  // namespace

std::uint64_t CheckpointPlan::bytes() const {
  std::uint64_t total = 0;
  for (const ShardPlan& shard : shards)
    for (const offload::StateField& field : offload::kStateFields) total += shard.file(field).bytes;
  return total;
}

Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       const ShardOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan, begin_plan(parameters));
  StatePieces all;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i)
    all.push_back({.parameter = i, .elements = plan.parameters[i].elements});
  SLUICE_RETURN_IF_ERROR(add_writer(all, options, plan));
  return plan;
}

Result<CheckpointPlan> plan_checkpoint(std::span<const TensorSpec> parameters,
                                       std::span<const StatePieces> of_writers,
                                       const ShardOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan, begin_plan(parameters));
  SLUICE_RETURN_IF_ERROR(check_pieces(plan.parameters, of_writers));
  for (const StatePieces& pieces : of_writers)
    SLUICE_RETURN_IF_ERROR(add_writer(pieces, options, plan));
  if (plan.shards.empty())
    return Error(ErrorCode::kInvalidArgument, "a model without numbers has no checkpoint");
  return plan;
}

Result<CheckpointPlan> plan_beside(std::span<const TensorSpec> parameters,
                                   const StatePieces& written, const StoredRecords& records,
                                   const ShardOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan plan, begin_plan(parameters));
  SLUICE_RETURN_IF_ERROR(check_records(records, options.moments));
  std::vector<StatePieces> all = {written};
  for (const StoredRecords::Part& part : records.parts) all.push_back(pieces_of(part));
  SLUICE_RETURN_IF_ERROR(check_pieces(plan.parameters, all));
  SLUICE_RETURN_IF_ERROR(add_writer(written, options, plan));
  return plan;
}

}  // namespace sluice::engine
