#include "engine/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/checkpoint/chunked_reader.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr int kMaxChunksAhead = 64;

std::size_t index_of(Family family) { return static_cast<std::size_t>(family); }

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(aio::IoQueue& queue,
                                                                 const std::string& folder,
                                                                 const Options& options) {
  if (options.chunks_ahead < 1 || options.chunks_ahead > kMaxChunksAhead)
    return Error(ErrorCode::kInvalidArgument,
                 "1 to " + std::to_string(kMaxChunksAhead) +
                     " chunks of a checkpoint can be read ahead, not " +
                     std::to_string(options.chunks_ahead));
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(queue, folder, options));
  SLUICE_RETURN_IF_ERROR(reader->prepare());
  return reader;
}

CheckpointReader::CheckpointReader(aio::IoQueue& queue, std::string folder, const Options& options)
    : queue_(queue), folder_(std::move(folder)), options_(options) {}

CheckpointReader::~CheckpointReader() = default;

Status CheckpointReader::prepare() {
  SLUICE_ASSIGN_OR_RETURN(manifest_, read_checkpoint_manifest(queue_, folder_));
  const std::uint64_t staging =
      families() * manifest_.chunk_bytes * static_cast<std::uint64_t>(options_.chunks_ahead);
  SLUICE_ASSIGN_OR_RETURN(staging_, aio::PageMemory::map(staging, true));
  for (std::size_t shard = 0; shard < manifest_.shards(); ++shard)
    SLUICE_RETURN_IF_ERROR(add_shard(shard));
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    elements += parameters_[i].elements;
    by_name_.emplace(parameters_[i].name, i);
  }
  if (parameters_.size() == manifest_.parameters && by_name_.size() == parameters_.size() &&
      elements == manifest_.elements)
    return {};
  return Error(ErrorCode::kCorrupt,
               folder_ + "/" + std::string(kManifestName) + " speaks of " +
                   std::to_string(manifest_.parameters) + " parameters with " +
                   std::to_string(manifest_.elements) + " elements, and the files have " +
                   std::to_string(by_name_.size()) + " with " + std::to_string(elements));
}

Result<std::vector<TensorInfo>> CheckpointReader::read_header(Family family, std::size_t shard,
                                                              std::uint64_t& data_offset_bytes) {
  SLUICE_ASSIGN_OR_RETURN(ChunkedReader* const file, file_of(family, shard));
  const auto in_file = [&](Error error) { return std::move(error).with_context(file->path()); };
  if (file->size_bytes() < kHeaderPrefixBytes)
    return in_file(Error(ErrorCode::kCorrupt, "it is too short to be a safetensors file"));
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  SLUICE_RETURN_IF_ERROR(file->read(0, prefix));
  auto length = safetensors_json_bytes(prefix, file->size_bytes());
  if (!length.ok()) return in_file(std::move(length).error());
  std::string json(*length, '\0');
  SLUICE_RETURN_IF_ERROR(file->read(prefix.size(), std::as_writable_bytes(std::span(json))));
  data_offset_bytes = prefix.size() + *length;
  auto header = parse_safetensors_json(json, file->size_bytes() - data_offset_bytes);
  if (!header.ok()) return in_file(std::move(header).error());
  for (const TensorInfo& tensor : header->tensors) {
    const DType expected = manifest_.dtype_of(family);
    if (tensor.dtype != expected)
      return in_file(Error(ErrorCode::kCorrupt, "tensor " + in_quotes(tensor.name) + " is " +
                                                    std::string(to_string(tensor.dtype)) +
                                                    ", and the checkpoint has " +
                                                    std::string(to_string(expected)) + " there"));
  }
  return std::move(header->tensors);
}

Status CheckpointReader::add_shard(std::size_t shard) {
  const std::size_t first = parameters_.size();
  for (std::size_t f = 0; f < families(); ++f) {
    std::uint64_t data_offset = 0;
    SLUICE_ASSIGN_OR_RETURN(auto tensors, read_header(kFamilies[f], shard, data_offset));
    if (f == 0) {
      places_.resize(first + tensors.size(), Place{.shard = shard});
      parameters_.insert(parameters_.end(), tensors.begin(), tensors.end());
    }
    const bool same = std::equal(tensors.begin(), tensors.end(),
                                 parameters_.begin() + static_cast<std::ptrdiff_t>(first),
                                 parameters_.end(), [](const TensorSpec& a, const TensorSpec& b) {
                                   return a.name == b.name && a.shape == b.shape;
                                 });
    if (!same)
      return Error(ErrorCode::kCorrupt,
                   files_[f]->path() + " has other parameters than " + files_[0]->path());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      places_[first + i].offset_bytes[f] = data_offset + tensors[i].begin_bytes;
  }
  return {};
}

const TensorInfo* CheckpointReader::find(std::string_view parameter) const {
  const auto entry = by_name_.find(parameter);
  return entry == by_name_.end() ? nullptr : &parameters_[entry->second];
}

Result<ChunkedReader*> CheckpointReader::file_of(Family family, std::size_t shard) {
  const std::size_t f = index_of(family);
  auto& file = files_[f];
  if (file == nullptr || open_shards_[f] != shard) {
    file.reset();
    const std::uint64_t share =
        manifest_.chunk_bytes * static_cast<std::uint64_t>(options_.chunks_ahead);
    SLUICE_ASSIGN_OR_RETURN(file,
                            ChunkedReader::open(queue_,
                                                {.manifest = &manifest_,
                                                 .folder = folder_,
                                                 .file_number = f * manifest_.shards() + shard},
                                                staging_.bytes().subspan(f * share, share)));
    open_shards_[f] = shard;
  }
  return file.get();
}

Status CheckpointReader::read_family(Family family, std::string_view parameter,
                                     std::uint64_t first_element, std::span<float> values) {
  const auto entry = by_name_.find(parameter);
  if (entry == by_name_.end())
    return Error(ErrorCode::kNotFound,
                 "there is no parameter " + in_quotes(parameter) + " in the checkpoint " + folder_);
  const TensorInfo& tensor = parameters_[entry->second];
  if (first_element > tensor.elements || values.size() > tensor.elements - first_element)
    return Error(ErrorCode::kInvalidArgument,
                 "parameter " + in_quotes(parameter) + " of the checkpoint " + folder_ + " has " +
                     std::to_string(tensor.elements) + " elements, and " +
                     std::to_string(values.size()) + " from " + std::to_string(first_element) +
                     " on were asked for");
  if (values.empty()) return {};
  const Place& place = places_[entry->second];
  SLUICE_ASSIGN_OR_RETURN(ChunkedReader* const file, file_of(family, place.shard));
  // The narrower numbers lie in the end of the room until each has become one of the values.
  const DType dtype = manifest_.dtype_of(family);
  const std::span<std::byte> stored =
      std::as_writable_bytes(values).last(values.size() * element_bytes(dtype));
  SLUICE_RETURN_IF_ERROR(file->read(
      place.offset_bytes[index_of(family)] + first_element * element_bytes(dtype), stored));
  if (dtype == DType::kF32) return {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, stored.data() + i * sizeof(half), sizeof(half));
    values[i] = std::bit_cast<float>(std::uint32_t{half} << 16);
  }
  return {};
}

Status CheckpointReader::read(std::string_view parameter, std::uint64_t first_element,
                              const StateSpans& to) {
  if (!options_.moments)
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint " + folder_ + " was opened without its moments");
  const std::array spans = {to.master, to.exp_avg, to.exp_avg_sq};
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].size() != to.master.size())
      return Error(
          ErrorCode::kInvalidArgument,
          "room for weights and moments of " + in_quotes(parameter) + " has different lengths");
    SLUICE_RETURN_IF_ERROR(read_family(kFamilies[i], parameter, first_element, spans[i]));
  }
  return {};
}

Status CheckpointReader::read_master(std::string_view parameter, std::uint64_t first_element,
                                     std::span<float> values) {
  return read_family(Family::kMaster, parameter, first_element, values);
}

}  // namespace sluice::engine
