#include "engine/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/checkpoint/chunked_reader.h"
#include "engine/checkpoint/stored_state_reader.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr int kMaxChunksAhead = 64;
constexpr std::size_t kMasters = 0;  // index in offload::kStateFields

bool is_same_tensor(const TensorSpec& a, const TensorSpec& b) {
  return a.name == b.name && a.shape == b.shape;
}

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
      fields() * manifest_.chunk_bytes * static_cast<std::uint64_t>(options_.chunks_ahead);
  if (manifest_.shards() > 0) {
    SLUICE_ASSIGN_OR_RETURN(staging_, aio::PageMemory::map(staging, true));
  }
  for (auto& of_field : offsets_) of_field.resize(manifest_.shards());
  if (manifest_.in_parts()) {
    SLUICE_ASSIGN_OR_RETURN(parameters_, lay_out(manifest_.tensors));
    add_pieces();
  } else {
    SLUICE_RETURN_IF_ERROR(add_shards());
  }
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    elements += parameters_[i].elements;
    by_name_.emplace(parameters_[i].name, i);
  }
  if (parameters_.size() == manifest_.parameters && by_name_.size() == parameters_.size() &&
      elements == manifest_.elements)
    return {};
  return Error(ErrorCode::kCorrupt,
               folder_ + "/" + std::string(kManifestName) + " announces " +
                   std::to_string(manifest_.parameters) + " parameters with " +
                   std::to_string(manifest_.elements) + " elements, but the files have " +
                   std::to_string(by_name_.size()) + " with " + std::to_string(elements));
}

CheckpointReader::TensorOffsets CheckpointReader::Header::offsets() const {
  TensorOffsets offsets;
  for (const TensorInfo& tensor : tensors)
    offsets.push_back(data_offset_bytes + tensor.begin_bytes);
  return offsets;
}

Status CheckpointReader::add_shards() {
  for (std::size_t shard = 0; shard < manifest_.shards(); ++shard)
    SLUICE_RETURN_IF_ERROR(add_shard(shard));
  return {};
}

// The pieces of each parameter in ascending order, whatever the order of files and records.
void CheckpointReader::add_pieces() {
  locations_.resize(parameters_.size());
  for (std::size_t shard = 0; shard < manifest_.shards(); ++shard) {
    const StatePieces& pieces = manifest_.pieces[shard];
    for (std::size_t i = 0; i < pieces.size(); ++i)
      locations_[pieces[i].parameter].push_back({.piece = pieces[i], .shard = shard, .tensor = i});
  }
  for (std::size_t part = 0; manifest_.records && part < manifest_.records->parts.size(); ++part) {
    for (const auto& [piece, record_element] : manifest_.records->parts[part].pieces)
      locations_[piece.parameter].push_back(
          {.piece = piece, .record = InRecord{.part = part, .record_element = record_element}});
  }
  for (std::vector<PieceLocation>& locations : locations_) {
    std::sort(locations.begin(), locations.end(),
              [](const PieceLocation& a, const PieceLocation& b) {
                return a.piece.first_element < b.piece.first_element;
              });
  }
}

Result<CheckpointReader::Header> CheckpointReader::read_header(ChunkedReader& file,
                                                               std::size_t field) const {
  const auto in_file = [&](Error error) { return std::move(error).with_context(file.path()); };
  if (file.size_bytes() < kHeaderPrefixBytes)
    return in_file(Error(ErrorCode::kCorrupt, "it is too short to be a safetensors file"));
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  SLUICE_RETURN_IF_ERROR(file.read(0, prefix));
  auto length = safetensors_json_bytes(prefix, file.size_bytes());
  if (!length.ok()) return in_file(std::move(length).error());
  std::string json(*length, '\0');
  SLUICE_RETURN_IF_ERROR(file.read(prefix.size(), std::as_writable_bytes(std::span(json))));
  Header header{.data_offset_bytes = prefix.size() + *length};
  auto parsed = parse_safetensors_json(json, file.size_bytes() - header.data_offset_bytes);
  if (!parsed.ok()) return in_file(std::move(parsed).error());
  for (const TensorInfo& tensor : parsed->tensors) {
    const DType expected = manifest_.dtype_of(field);
    if (tensor.dtype != expected)
      return in_file(Error(ErrorCode::kCorrupt, "tensor " + in_quotes(tensor.name) + " is " +
                                                    std::string(to_string(tensor.dtype)) +
                                                    ", but the checkpoint has " +
                                                    std::string(to_string(expected)) + " there"));
  }
  header.tensors = std::move(parsed->tensors);
  return header;
}

// For a checkpoint of one rank: the master files' headers define the parameters.
Status CheckpointReader::add_shard(std::size_t shard) {
  const std::size_t first = parameters_.size();
  for (std::size_t f = 0; f < fields(); ++f) {
    SLUICE_ASSIGN_OR_RETURN(ChunkedReader* const file, file_of(f, shard));
    SLUICE_ASSIGN_OR_RETURN(const Header header, read_header(*file, f));
    const std::vector<TensorInfo>& tensors = header.tensors;
    for (std::size_t i = 0; f == 0 && i < tensors.size(); ++i) {
      locations_.push_back({{.piece = {.parameter = first + i, .elements = tensors[i].elements},
                             .shard = shard,
                             .tensor = i}});
      parameters_.push_back(tensors[i]);
    }
    if (!std::equal(tensors.begin(), tensors.end(),
                    parameters_.begin() + static_cast<std::ptrdiff_t>(first), parameters_.end(),
                    is_same_tensor))
      return Error(ErrorCode::kCorrupt,
                   files_[f]->path() + " has other parameters than " + files_[0]->path());
    offsets_[f][shard] = header.offsets();
  }
  return {};
}

Status CheckpointReader::know_offsets(ChunkedReader& file, std::size_t field, std::size_t shard) {
  auto& offsets = offsets_[field][shard];
  if (offsets) return {};
  SLUICE_ASSIGN_OR_RETURN(const Header header, read_header(file, field));
  std::vector<TensorSpec> expected;
  for (const StatePiece& piece : manifest_.pieces[shard])
    expected.push_back(piece_tensor(parameters_[piece.parameter], piece));
  if (!std::equal(header.tensors.begin(), header.tensors.end(), expected.begin(), expected.end(),
                  is_same_tensor))
    return Error(ErrorCode::kCorrupt, file.path() + " has other pieces of parameters than " +
                                          std::string(kManifestName) + " in the same folder says");
  offsets = header.offsets();
  return {};
}

Status CheckpointReader::check_headers() {
  for (std::size_t shard = 0; manifest_.in_parts() && shard < manifest_.shards(); ++shard) {
    for (std::size_t f = 0; f < fields(); ++f) {
      SLUICE_ASSIGN_OR_RETURN(ChunkedReader* const file, file_of(f, shard));
      SLUICE_RETURN_IF_ERROR(know_offsets(*file, f, shard));
    }
  }
  return {};
}

const TensorInfo* CheckpointReader::find(std::string_view parameter) const {
  const auto entry = by_name_.find(parameter);
  return entry == by_name_.end() ? nullptr : &parameters_[entry->second];
}

Result<ChunkedReader*> CheckpointReader::file_of(std::size_t field, std::size_t shard) {
  const std::size_t f = field;
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

Status CheckpointReader::read_fields(std::string_view parameter, std::uint64_t first_element,
                                     const Fields& to) {
  const auto entry = by_name_.find(parameter);
  if (entry == by_name_.end())
    return Error(ErrorCode::kNotFound,
                 "there is no parameter " + in_quotes(parameter) + " in the checkpoint " + folder_);
  const TensorInfo& tensor = parameters_[entry->second];
  const std::uint64_t elements = to[kMasters].size();
  if (first_element > tensor.elements || elements > tensor.elements - first_element)
    return Error(ErrorCode::kInvalidArgument,
                 "parameter " + in_quotes(parameter) + " of the checkpoint " + folder_ + " has " +
                     std::to_string(tensor.elements) + " elements, and " +
                     std::to_string(elements) + " from " + std::to_string(first_element) +
                     " on were asked for");
  const std::uint64_t end = first_element + elements;
  for (const PieceLocation& location : locations_[entry->second]) {
    const std::uint64_t begin_here = std::max(first_element, location.piece.first_element);
    const std::uint64_t end_here = std::min(end, location.piece.end());
    if (begin_here >= end_here) continue;
    Fields here = to;
    for (std::span<float>& field : here)
      if (!field.empty()) field = field.subspan(begin_here - first_element, end_here - begin_here);
    if (location.record) SLUICE_RETURN_IF_ERROR(read_record(location, begin_here, here));
    for (std::size_t f = 0; !location.record && f < here.size(); ++f)
      if (!here[f].empty()) SLUICE_RETURN_IF_ERROR(read_piece(f, location, begin_here, here[f]));
  }
  return {};
}

Status CheckpointReader::read_record(const PieceLocation& location, std::uint64_t first_element,
                                     const Fields& to) {
  if (records_ == nullptr) {
    auto opened = StoredStateReader::open(queue_, *manifest_.records);
    if (!opened.ok()) return std::move(opened).error().with_context(folder_);
    records_ = *std::move(opened);
  }
  const std::uint64_t in_piece = first_element - location.piece.first_element;
  Status read =
      records_->read(location.record->part, location.record->record_element + in_piece, to);
  if (!read.ok()) return std::move(read).error().with_context(folder_);
  return {};
}

// All of `values` must be in the piece.
Status CheckpointReader::read_piece(std::size_t field, const PieceLocation& location,
                                    std::uint64_t first_element, std::span<float> values) {
  SLUICE_ASSIGN_OR_RETURN(ChunkedReader* const file, file_of(field, location.shard));
  if (manifest_.in_parts()) SLUICE_RETURN_IF_ERROR(know_offsets(*file, field, location.shard));
  const TensorOffsets& offsets = *offsets_[field][location.shard];
  // The narrower numbers are read into the end of the buffer, then widened in place from its start.
  const DType dtype = manifest_.dtype_of(field);
  const std::span<std::byte> stored =
      std::as_writable_bytes(values).last(values.size() * element_bytes(dtype));
  SLUICE_RETURN_IF_ERROR(
      file->read(offsets[location.tensor] +
                     (first_element - location.piece.first_element) * element_bytes(dtype),
                 stored));
  if (dtype == DType::kF32) return {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, stored.data() + i * sizeof(half), sizeof(half));
    values[i] = std::bit_cast<float>(std::uint32_t{half} << 16);
  }
  return {};
}

Status CheckpointReader::read(std::string_view parameter, const offload::StateSlice& to) {
  if (!options_.moments)
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint " + folder_ + " was opened without its moments");
  for (const std::span<float>& field : to.fields) {
    if (field.size() != to.elements())
      return Error(
          ErrorCode::kInvalidArgument,
          "room for weights and moments of " + in_quotes(parameter) + " has different lengths");
  }
  return read_fields(parameter, to.first_element, to.fields);
}

Status CheckpointReader::read_master(std::string_view parameter, std::uint64_t first_element,
                                     std::span<float> values) {
  return read_fields(parameter, first_element, {values});
}

}  // namespace sluice::engine
