#include "engine/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_entry.h"
#include "engine/checkpoint/chunked_writer.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/shard_plan.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

constexpr int kMaxChunksInFlight = 64;
constexpr std::uint64_t kManifestBytesOfChunk = 16;  // its checksum
constexpr std::uint64_t kSmallFilesBytes = 64 * kKiB;

Error invalid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

Status check_options(const CheckpointWriter::Options& options) {
  if (options.chunk_bytes < kMinChunkBytes || options.chunk_bytes > kMaxChunkBytes ||
      options.chunk_bytes % kMinChunkBytes != 0)
    return invalid("a checkpoint's chunks have a multiple of 4096 bytes up to 64M, not " +
                   std::to_string(options.chunk_bytes));
  if (options.moments != DType::kF32 && options.moments != DType::kBF16)
    return invalid("a checkpoint's moments are F32 or BF16, not " +
                   std::string(to_string(options.moments)));
  if (options.chunks_in_flight < 2 || options.chunks_in_flight > kMaxChunksInFlight)
    return invalid("2 to " + std::to_string(kMaxChunksInFlight) +
                   " chunks of a checkpoint can be in flight, not " +
                   std::to_string(options.chunks_in_flight));
  return {};
}

// Makes the folder and its parents, and their names durable.
Status make_durable_folder(aio::FileSystem& files, const std::string& folder) {
  std::vector<std::string> made = {folder};
  for (std::string parent = parent_folder(folder);; parent = parent_folder(parent)) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(parent));
    if (there) break;
    made.push_back(parent);
  }
  SLUICE_RETURN_IF_ERROR(files.make_directories(folder));
  for (const std::string& path : made)
    SLUICE_RETURN_IF_ERROR(files.sync_directory(parent_folder(path)));
  return {};
}

// A folder can be replaced if nothing in it would be lost.
Status check_replaceable(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(folder));
  for (const std::string& name : names) {
    if (!is_checkpoint_file(name))
      return Error(ErrorCode::kAlreadyExists,
                   "the checkpoint " + folder + " cannot be replaced: there is " + in_quotes(name) +
                       " in it, which is none of its files. Move that away, or the folder");
  }
  return {};
}

std::size_t index_of(Family family) { return static_cast<std::size_t>(family); }

}  // namespace

std::uint64_t CheckpointWriter::staging_bytes(const Options& options) {
  return kFamilies.size() * static_cast<std::uint64_t>(options.chunks_in_flight) *
         options.chunk_bytes;
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::begin(
    aio::IoQueue& queue, const std::string& folder, std::span<const TensorSpec> parameters,
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(queue, folder, options));
  SLUICE_RETURN_IF_ERROR(writer->prepare(parameters));
  return writer;
}

CheckpointWriter::CheckpointWriter(aio::IoQueue& queue, std::string folder, const Options& options)
    : queue_(queue),
      folder_(std::move(folder)),
      options_(options),
      target_(folder_ + std::string(kReplacementSuffix)) {}

CheckpointWriter::~CheckpointWriter() {
  for (auto& file : files_) file.reset();
  if (!made_ || committed_) return;
  const Status removed = remove_checkpoint(queue_, target_);
  if (!removed.ok())
    log::warning("what was written of a checkpoint that failed could not be removed: " +
                 removed.error().message());
}

Status CheckpointWriter::prepare(std::span<const TensorSpec> parameters) {
  SLUICE_ASSIGN_OR_RETURN(shards_, plan_shards(parameters, {.max_bytes = options_.max_shard_bytes,
                                                            .moments = options_.moments}));
  manifest_.parameters = parameters.size();
  manifest_.chunk_bytes = options_.chunk_bytes;
  manifest_.moments = options_.moments;
  for (const ShardPlan& shard : shards_) {
    for (const Family family : kFamilies) total_bytes_ += shard.file(family).bytes;
    for (const TensorInfo& tensor : shard.tensors) manifest_.elements += tensor.elements;
  }
  for (const Family family : kFamilies) {
    for (std::size_t shard = 0; shard < shards_.size(); ++shard)
      manifest_.files.push_back({.name = shard_name(family, shard, shards_.size()),
                                 .bytes = shards_[shard].file(family).bytes});
  }
  SLUICE_ASSIGN_OR_RETURN(staging_, aio::PageMemory::map(staging_bytes(options_), true));
  SLUICE_RETURN_IF_ERROR(take_folder());
  SLUICE_RETURN_IF_ERROR(take_space());
  SLUICE_RETURN_IF_ERROR(write_index());
  SLUICE_RETURN_IF_ERROR(begin_shard());
  return skip_full();
}

// Whatever cannot be read is set aside, not lost: a run that has come this far must be able to
// save.
Status CheckpointWriter::take_folder() {
  aio::FileSystem& files = queue_.backend().files();
  const auto begun = look_at_checkpoint(queue_, target_);
  if (begun && begun->known() && !begun->leftover && !begun->complete())
    SLUICE_RETURN_IF_ERROR(set_folder_aside(files, target_));
  SLUICE_RETURN_IF_ERROR(settle_replacement(queue_, folder_));
  const auto there = look_at_checkpoint(queue_, folder_);
  if (there && !there->leftover) {
    if (!options_.replace)
      return Error(ErrorCode::kAlreadyExists, "there is a checkpoint in " + folder_ + " already");
    if (there->complete()) SLUICE_RETURN_IF_ERROR(check_replaceable(files, folder_));
  }
  made_ = true;
  return make_durable_folder(files, target_);
}

// All of it before anything is written, so that a full disk shows now. The index and the manifest
// are small, and get what is left.
Status CheckpointWriter::take_space() {
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free_bytes,
                          queue_.backend().files().free_bytes(target_));
  const std::uint64_t needed_bytes =
      total_bytes_ + kSmallFilesBytes + total_bytes_ / options_.chunk_bytes * kManifestBytesOfChunk;
  if (needed_bytes > free_bytes)
    return Error(ErrorCode::kNoSpace, "no room for a checkpoint of " + format_bytes(needed_bytes) +
                                          " in " + target_ + ": " + format_bytes(free_bytes) +
                                          " are free. Free some space there, keep fewer "
                                          "checkpoints, or choose another path");
  for (const StoredFile& file : manifest_.files)
    SLUICE_RETURN_IF_ERROR(ChunkedWriter::reserve(queue_, path_in(file.name), file.bytes));
  return {};
}

Status CheckpointWriter::begin_shard() {
  const ShardPlan& shard = shards_[shard_];
  const std::uint64_t share = staging_.size_bytes() / kFamilies.size();
  const std::uint64_t staging =
      options_.chunk_bytes * static_cast<std::uint64_t>(options_.chunks_in_flight);
  SLUICE_CHECK(staging <= share, "staging memory for every family");
  for (const Family family : kFamilies) {
    const std::size_t number = index_of(family) * shards_.size() + shard_;
    auto& file = files_[index_of(family)];
    SLUICE_ASSIGN_OR_RETURN(
        file, ChunkedWriter::open(queue_,
                                  {.path = path_in(manifest_.files[number].name),
                                   .bytes = shard.file(family).bytes,
                                   .file_number = number,
                                   .chunk_bytes = options_.chunk_bytes},
                                  staging_.bytes().subspan(index_of(family) * staging, staging)));
    SLUICE_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(shard.file(family).header))));
  }
  return {};
}

// To the next parameter that needs values, across the ends of shards.
Status CheckpointWriter::skip_full() {
  while (shard_ < shards_.size()) {
    const auto& tensors = shards_[shard_].tensors;
    while (tensor_ < tensors.size() && elements_done_ == tensors[tensor_].elements) {
      ++tensor_;
      elements_done_ = 0;
    }
    if (tensor_ < tensors.size()) return {};
    for (const Family family : kFamilies) {
      auto& file = files_[index_of(family)];
      SLUICE_RETURN_IF_ERROR(file->finish());
      manifest_.files[index_of(family) * shards_.size() + shard_].chunks = file->checksums();
      file.reset();
    }
    tensor_ = 0;
    if (++shard_ < shards_.size()) SLUICE_RETURN_IF_ERROR(begin_shard());
  }
  return {};
}

Status CheckpointWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

Status CheckpointWriter::check_next(const StateValues& values) const {
  const auto refuse = [&](const std::string& what) {
    return invalid("checkpoint " + folder_ + ": " + what);
  };
  if (values.exp_avg.size() != values.master.size() ||
      values.exp_avg_sq.size() != values.master.size())
    return refuse("parameter " + in_quotes(values.parameter) + " came with " +
                  std::to_string(values.master.size()) + " weights, and moments of other lengths");
  if (shard_ == shards_.size())
    return refuse("values of " + in_quotes(values.parameter) + " come after the last parameter");
  const TensorInfo& next = shards_[shard_].tensors[tensor_];
  if (values.parameter != next.name || values.first_element != elements_done_)
    return refuse("element " + std::to_string(values.first_element) + " of " +
                  in_quotes(values.parameter) + " came where element " +
                  std::to_string(elements_done_) + " of " + in_quotes(next.name) + " comes next");
  if (values.master.size() > next.elements - elements_done_)
    return refuse("parameter " + in_quotes(next.name) + " has " + std::to_string(next.elements) +
                  " elements, and " + std::to_string(elements_done_ + values.master.size()) +
                  " came");
  return {};
}

Status CheckpointWriter::append_to(Family family, std::span<const float> values) {
  ChunkedWriter& file = *files_[index_of(family)];
  const DType dtype = manifest_.dtype_of(family);
  if (dtype == DType::kF32) return file.write(std::as_bytes(values));
  constexpr std::uint64_t kPieceElements = 32 * 1024;
  for (; !values.empty(); values = values.subspan(std::min(values.size(), kPieceElements))) {
    const auto piece = values.first(std::min(values.size(), kPieceElements));
    for (const float value : piece) {
      if ((std::bit_cast<std::uint32_t>(value) & 0xFFFF) != 0)
        return invalid("checkpoint " + folder_ + ": a moment of " +
                       in_quotes(shards_[shard_].tensors[tensor_].name) +
                       " is no bf16 number, and the files are to hold bf16 ones");
    }
    narrowed_.resize(piece.size() * element_bytes(dtype));
    from_floats(dtype, piece, narrowed_);
    SLUICE_RETURN_IF_ERROR(file.write(narrowed_));
  }
  return {};
}

Status CheckpointWriter::append(const StateValues& values) {
  if (!status_.ok()) return status_;
  if (committed_) return invalid("checkpoint " + folder_ + " is finished");
  if (values.master.empty() && values.exp_avg.empty() && values.exp_avg_sq.empty()) return {};
  SLUICE_RETURN_IF_ERROR(fail(check_next(values)));
  const std::array spans = {values.master, values.exp_avg, values.exp_avg_sq};
  for (std::size_t i = 0; i < spans.size(); ++i)
    SLUICE_RETURN_IF_ERROR(fail(append_to(kFamilies[i], spans[i])));
  elements_done_ += values.master.size();
  return fail(skip_full());
}

Status CheckpointWriter::commit(const CheckpointState& state) {
  if (!status_.ok()) return status_;
  if (committed_) return {};
  if (shard_ < shards_.size()) {
    const TensorInfo& next = shards_[shard_].tensors[tensor_];
    return invalid("checkpoint " + folder_ + ": parameter " + in_quotes(next.name) + " has " +
                   std::to_string(elements_done_) + " of its " + std::to_string(next.elements) +
                   " elements");
  }
  return fail(publish(state));
}

// Hugging Face's index of the master family, so that other programs find the weights.
Status CheckpointWriter::write_index() {
  WeightMap weights;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const TensorInfo& tensor : shards_[shard].tensors)
      weights.emplace(tensor.name, manifest_.files[shard].name);
  }
  const std::string text = make_safetensors_index(weights, manifest_.elements * sizeof(float));
  StoredFile index{.name = std::string(kWeightIndexName), .bytes = text.size()};
  const auto bytes = std::as_bytes(std::span(text));
  for (std::uint64_t offset = 0; offset < bytes.size(); offset += options_.chunk_bytes) {
    const auto rest = bytes.subspan(offset);
    index.chunks.push_back(
        checkpoint_hash(rest.first(std::min<std::uint64_t>(rest.size(), options_.chunk_bytes)),
                        {.file = manifest_.files.size(), .offset_bytes = offset}));
  }
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue_, path_in(index.name), text));
  total_bytes_ += index.bytes;
  manifest_.files.push_back(std::move(index));
  return {};
}

// Everything that the manifest mentions is durable before it appears: the bytes since their files
// were finished, their names from here on, the folder's since it was made.
Status CheckpointWriter::publish(const CheckpointState& state) {
  aio::FileSystem& files = queue_.backend().files();
  manifest_.state = state;
  SLUICE_RETURN_IF_ERROR(files.sync_directory(target_));
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue_, path_in(kManifestName), to_text(manifest_)));
  committed_ = true;
  return settle_replacement(queue_, folder_);
}

std::string CheckpointWriter::path_in(std::string_view name) const {
  return target_ + "/" + std::string(name);
}

}  // namespace sluice::engine
