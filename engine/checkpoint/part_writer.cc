#include "engine/checkpoint/part_writer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aio/check.h"
#include "engine/checkpoint/chunked_writer.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

using offload::kStateFields;

constexpr int kMaxChunksInFlight = 64;

Error not_valid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::uint64_t staging_of_file(const CheckpointOptions& options) {
  return options.chunk_bytes * static_cast<std::uint64_t>(options.chunks_in_flight);
}

}  // namespace

Status check_options(const CheckpointOptions& options) {
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % kMinChunkBytes != 0)
    return not_valid("a checkpoint's chunks have a multiple of 4096 bytes up to 64M, not " +
                     std::to_string(options.chunk_bytes));
  if (options.moments != DType::kF32 && options.moments != DType::kBF16)
    return not_valid("a checkpoint's moments are F32 or BF16, not " +
                     std::string(to_string(options.moments)));
  if (options.chunks_in_flight < 2 || options.chunks_in_flight > kMaxChunksInFlight)
    return not_valid("2 to " + std::to_string(kMaxChunksInFlight) +
                     " chunks of a checkpoint can be in flight, not " +
                     std::to_string(options.chunks_in_flight));
  return {};
}

std::uint64_t checksums_of(const CheckpointPlan& plan, int writer, std::uint64_t chunk_bytes) {
  std::uint64_t count = 0;
  const auto number = static_cast<std::size_t>(writer);
  for (std::size_t shard = plan.first_shards[number]; shard < plan.first_shards[number + 1];
       ++shard) {
    for (const offload::StateField& field : kStateFields)
      count += (plan.shards[shard].file(field).bytes - 1) / chunk_bytes + 1;
  }
  return count;
}

std::uint64_t PartWriter::staging_bytes(const CheckpointOptions& options) {
  return kStateFields.size() * staging_of_file(options);
}

Result<std::unique_ptr<PartWriter>> PartWriter::begin(aio::IoQueue& queue,
                                                      const std::string& folder,
                                                      std::shared_ptr<const CheckpointPlan> plan,
                                                      int writer,
                                                      const CheckpointOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  SLUICE_CHECK(writer >= 0 && writer < plan->writers(), "a writer that the plan does not have");
  std::unique_ptr<PartWriter> part(new PartWriter(queue, folder, std::move(plan), writer, options));
  SLUICE_ASSIGN_OR_RETURN(part->staging_, aio::PageMemory::map(staging_bytes(options), true));
  SLUICE_RETURN_IF_ERROR(part->take_space());
  if (!part->is_full()) SLUICE_RETURN_IF_ERROR(part->begin_shard());
  SLUICE_RETURN_IF_ERROR(part->skip_full());
  return part;
}

PartWriter::PartWriter(aio::IoQueue& queue, std::string folder,
                       std::shared_ptr<const CheckpointPlan> plan, int writer,
                       const CheckpointOptions& options)
    : queue_(queue),
      folder_(std::move(folder)),
      plan_(std::move(plan)),
      options_(options),
      begin_shard_(plan_->first_shards[static_cast<std::size_t>(writer)]),
      end_shard_(plan_->first_shards[static_cast<std::size_t>(writer) + 1]),
      shard_(begin_shard_) {}

PartWriter::~PartWriter() = default;

std::string PartWriter::path_of(const offload::StateField& field, std::size_t shard) const {
  return folder_ + std::string(kReplacementSuffix) + "/" +
         shard_name(field, shard, plan_->shards.size());
}

Status PartWriter::take_space() {
  for (const offload::StateField& field : kStateFields) {
    for (std::size_t shard = begin_shard_; shard < end_shard_; ++shard) {
      const Status taken = ChunkedWriter::reserve(queue_, path_of(field, shard),
                                                  plan_->shards[shard].file(field).bytes);
      if (!taken.ok() && taken.error().code() == ErrorCode::kNotFound)
        return Error(taken.error())
            .with_suffix(
                "; the first writer has made that folder, and it is not seen here: all "
                "hosts of a run need the same folder for its checkpoints");
      SLUICE_RETURN_IF_ERROR(taken);
    }
  }
  return {};
}

Status PartWriter::begin_shard() {
  const ShardPlan& shard = plan_->shards[shard_];
  const std::uint64_t staging = staging_of_file(options_);
  SLUICE_CHECK(staging <= staging_.size_bytes() / kStateFields.size(),
               "staging memory for every field");
  for (std::size_t field = 0; field < kStateFields.size(); ++field) {
    auto& file = files_[field];
    const ShardPlan::File& planned = shard.file(kStateFields[field]);
    SLUICE_ASSIGN_OR_RETURN(
        file, ChunkedWriter::open(queue_,
                                  {.path = path_of(kStateFields[field], shard_),
                                   .bytes = planned.bytes,
                                   .file_number = plan_->file_number(field, shard_),
                                   .chunk_bytes = options_.chunk_bytes},
                                  staging_.bytes().subspan(field * staging, staging)));
    SLUICE_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(planned.header))));
  }
  return {};
}

// Moves on to the next piece that needs values, across shards if necessary.
Status PartWriter::skip_full() {
  while (!is_full()) {
    const StatePieces& pieces = plan_->shards[shard_].pieces;
    while (tensor_ < pieces.size() && elements_done_ == pieces[tensor_].elements) {
      ++tensor_;
      elements_done_ = 0;
    }
    if (tensor_ < pieces.size()) return {};
    for (std::size_t f = 0; f < files_.size(); ++f) {
      SLUICE_RETURN_IF_ERROR(files_[f]->finish());
      const std::vector<std::uint64_t>& sums = files_[f]->checksums();
      checksums_[f].insert(checksums_[f].end(), sums.begin(), sums.end());
      files_[f].reset();
    }
    tensor_ = 0;
    ++shard_;
    if (!is_full()) SLUICE_RETURN_IF_ERROR(begin_shard());
  }
  return {};
}

Status PartWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

Status PartWriter::check_next(std::string_view parameter,
                              const offload::ConstStateSlice& state) const {
  const auto refuse = [&](const std::string& what) {
    return not_valid("checkpoint " + folder_ + ": " + what);
  };
  if (!std::ranges::all_of(state.fields,
                           [&](const auto& it) { return it.size() == state.elements(); }))
    return refuse("parameter " + in_quotes(parameter) + " came with " +
                  std::to_string(state.elements()) + " weights, and moments of other lengths");
  if (is_full())
    return refuse("values of " + in_quotes(parameter) + " come after the last parameter");
  const StatePiece& piece = next_piece();
  const std::uint64_t next = piece.first_element + elements_done_;
  if (parameter != next_name() || state.first_element != next)
    return refuse("element " + std::to_string(state.first_element) + " of " + in_quotes(parameter) +
                  " came where element " + std::to_string(next) + " of " + in_quotes(next_name()) +
                  " comes next");
  if (state.elements() > piece.elements - elements_done_)
    return refuse("parameter " + in_quotes(next_name()) + " has " + std::to_string(piece.elements) +
                  " elements, and " + std::to_string(elements_done_ + state.elements()) + " came");
  return {};
}

Status PartWriter::append_to(std::size_t field, std::span<const float> values) {
  ChunkedWriter& file = *files_[field];
  const DType dtype = stored_dtype(kStateFields[field], options_.moments);
  if (dtype == DType::kF32) return file.write(std::as_bytes(values));
  constexpr std::uint64_t kPieceElements = 32 * 1024;
  for (; !values.empty(); values = values.subspan(std::min(values.size(), kPieceElements))) {
    const auto piece = values.first(std::min(values.size(), kPieceElements));
    for (const float value : piece) {
      if ((std::bit_cast<std::uint32_t>(value) & 0xFFFF) != 0)
        return not_valid("checkpoint " + folder_ + ": a moment of " + in_quotes(next_name()) +
                         " is no bf16 number, and the files are to hold bf16 ones");
    }
    narrowed_.resize(piece.size() * element_bytes(dtype));
    from_floats(dtype, piece, narrowed_);
    SLUICE_RETURN_IF_ERROR(file.write(narrowed_));
  }
  return {};
}

Status PartWriter::append(std::string_view parameter, const offload::ConstStateSlice& state) {
  if (!status_.ok()) return status_;
  if (std::ranges::all_of(state.fields, [](const auto& it) { return it.empty(); })) return {};
  SLUICE_RETURN_IF_ERROR(fail(check_next(parameter, state)));
  for (std::size_t field = 0; field < state.fields.size(); ++field)
    SLUICE_RETURN_IF_ERROR(fail(append_to(field, state.fields[field])));
  elements_done_ += state.elements();
  return fail(skip_full());
}

Status PartWriter::finish() {
  if (!status_.ok() || is_full()) return status_;
  return not_valid("checkpoint " + folder_ + ": parameter " + in_quotes(next_name()) + " has " +
                   std::to_string(elements_done_) + " of its " +
                   std::to_string(next_piece().elements) + " elements");
}

std::vector<std::uint64_t> PartWriter::checksums() const {
  std::vector<std::uint64_t> all;
  for (const auto& of_field : checksums_) all.insert(all.end(), of_field.begin(), of_field.end());
  return all;
}

}  // namespace sluice::engine
