#include "engine/weights/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMinStagingBytes = 64 * kKiB;
constexpr std::string_view kFileName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

Error missing_file(const std::string& index_path, const std::string& name, std::size_t files) {
  return Error(ErrorCode::kNotFound, index_path + ": it names " + name +
                                         ", which is not in the same folder; all of its " +
                                         std::to_string(files) + " files are needed");
}

struct OpenedFile {
  SafetensorsHeader header;
  std::uint64_t data_offset_bytes = 0;
  std::uint64_t file_bytes = 0;
};

Result<OpenedFile> read_header(aio::IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, aio::DirectFile::open(queue, path, {}));
  const auto in_file = [&path](Error error) { return std::move(error).with_context(path); };
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  if (file->size_bytes() < prefix.size()) {
    return in_file(Error(ErrorCode::kCorrupt, "it has " + std::to_string(file->size_bytes()) +
                                                  " bytes, so it is not a safetensors file"));
  }
  SLUICE_RETURN_IF_ERROR(queue.read(*file, 0, prefix));
  auto length = safetensors_json_bytes(prefix, file->size_bytes());
  if (!length.ok()) return in_file(std::move(length).error());
  std::string json(*length, '\0');
  SLUICE_RETURN_IF_ERROR(queue.read(*file, prefix.size(), std::as_writable_bytes(std::span(json))));
  const std::uint64_t data_offset = prefix.size() + *length;
  auto header = parse_safetensors_json(json, file->size_bytes() - data_offset);
  if (!header.ok()) return in_file(std::move(header).error());
  return OpenedFile{std::move(*header), data_offset, file->size_bytes()};
}

// Selects a folder's file or index. If both exist, the single file, as transformers does.
Result<std::string> find_in_folder(aio::FileSystem& files, const std::string& path) {
  const auto names = files.list(path);
  if (!names.ok()) return path;  // not a folder
  for (const std::string_view name : {kFileName, kIndexName}) {
    if (std::find(names->begin(), names->end(), name) != names->end())
      return path + "/" + std::string(name);
  }
  const bool has_pickles = std::any_of(names->begin(), names->end(), [](std::string_view name) {
    return name.starts_with("pytorch_model") && name.find(".bin") != std::string_view::npos;
  });
  return Error(
      ErrorCode::kNotFound,
      "there is neither " + std::string(kFileName) + " nor " + std::string(kIndexName) +
          " in the folder " + path +
          (has_pickles ? ": its pytorch_model*.bin files can run code when they are loaded, so "
                         "convert it with transformers "
                         "(AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER))"
                       : ""));
}

}  // namespace

SafetensorsReader::SafetensorsReader(aio::IoQueue& queue, aio::PageMemory staging)
    : queue_(queue), staging_(std::move(staging)) {}

Result<std::unique_ptr<SafetensorsReader>> SafetensorsReader::open(aio::IoQueue& queue,
                                                                   const std::string& path,
                                                                   const Options& options) {
  const std::uint64_t staging_bytes =
      align_up(std::max(options.staging_bytes, kMinStagingBytes), 2 * kPageBytes);
  SLUICE_ASSIGN_OR_RETURN(auto staging, aio::PageMemory::map(staging_bytes, true));
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader(queue, std::move(staging)));
  SLUICE_ASSIGN_OR_RETURN(const std::string found, find_in_folder(queue.backend().files(), path));
  if (found.ends_with(".json")) {
    SLUICE_RETURN_IF_ERROR(reader->add_set(found));
  } else {
    SLUICE_RETURN_IF_ERROR(reader->add_file(found, found, nullptr));
  }
  for (std::size_t i = 0; i < reader->tensors_.size(); ++i)
    reader->by_name_.emplace(reader->tensors_[i].name, i);
  return reader;
}

// With an index, adds only those of the file's tensors that the index assigns to it.
Status SafetensorsReader::add_file(const std::string& path, const std::string& name,
                                   const WeightMap* index) {
  SLUICE_ASSIGN_OR_RETURN(OpenedFile opened, read_header(queue_, path));
  if (shards_.empty()) metadata_ = std::move(opened.header.metadata);
  for (TensorInfo& tensor : opened.header.tensors) {
    if (index != nullptr) {
      const auto entry = index->find(tensor.name);
      if (entry == index->end() || entry->second != name) continue;
    }
    tensors_.push_back(std::move(tensor));
    shard_of_.push_back(shards_.size());
  }
  shards_.push_back({path, opened.data_offset_bytes, opened.file_bytes});
  return {};
}

Status SafetensorsReader::add_set(const std::string& index_path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue_, index_path, kMaxHeaderJsonBytes));
  auto index = parse_safetensors_index(text);
  if (!index.ok()) return std::move(index).error().with_context(index_path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : *index) names.insert(file);
  const std::string folder = index_path.substr(0, index_path.rfind('/') + 1);
  for (const std::string& name : names) {
    Status added = add_file(folder + name, name, &*index);
    if (added.ok()) continue;
    if (added.error().code() != ErrorCode::kNotFound) return added;
    return missing_file(index_path, name, names.size());
  }
  if (tensors_.size() == index->size()) return {};
  std::set<std::string_view> found;
  for (const TensorInfo& tensor : tensors_) found.insert(tensor.name);
  std::size_t missing = 0;
  std::string sentence;
  for (const auto& [tensor, file] : *index) {
    if (found.contains(tensor) || ++missing > 1) continue;
    sentence = index_path;
    sentence.append(": tensor ").append(in_quotes(tensor)).append(" is listed in ");
    sentence.append(file).append(", but is missing there");
  }
  if (tensors_.empty()) return Error(ErrorCode::kCorrupt, sentence);
  // transformers accepts this too. Reading a missing tensor is an error later.
  if (missing > 1) sentence += ", and so are " + std::to_string(missing - 1) + " more";
  log::warning_once("index " + index_path, sentence);  // it is opened repeatedly
  return {};
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto entry = by_name_.find(name);
  return entry == by_name_.end() ? nullptr : &tensors_[entry->second];
}

Status SafetensorsReader::open_shard(std::size_t shard) {
  if (file_ != nullptr && open_shard_ == shard) return {};
  file_.reset();
  SLUICE_ASSIGN_OR_RETURN(auto file, aio::DirectFile::open(queue_, shards_[shard].path, {}));
  if (file->size_bytes() != shards_[shard].file_bytes)
    return Error(ErrorCode::kCorrupt, shards_[shard].path + " changed while it was read");
  file_ = std::move(file);
  open_shard_ = shard;
  return {};
}

Status SafetensorsReader::read(std::string_view name, std::uint64_t first_element,
                               std::span<float> values) {
  const auto entry = by_name_.find(name);
  if (entry == by_name_.end())
    return Error(ErrorCode::kNotFound, "there is no tensor " + in_quotes(name) + " in " +
                                           (shards_.size() == 1 ? shards_[0].path : "these files"));
  const TensorInfo& tensor = tensors_[entry->second];
  const Shard& shard = shards_[shard_of_[entry->second]];
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    return Error(code, shard.path + ": tensor " + in_quotes(name) + " " + what);
  };
  if (!is_weight_dtype(tensor.dtype) && tensor.dtype != DType::kU8)
    return refuse(ErrorCode::kUnsupported, "is " + std::string(to_string(tensor.dtype)) +
                                               "; weights are F16, BF16, F32 or F64");
  if (first_element > tensor.elements || values.size() > tensor.elements - first_element)
    return refuse(ErrorCode::kInvalidArgument,
                  "has " + std::to_string(tensor.elements) + " elements, and " +
                      std::to_string(values.size()) + " from " + std::to_string(first_element) +
                      " on were asked for");
  if (values.empty()) return {};
  SLUICE_RETURN_IF_ERROR(open_shard(shard_of_[entry->second]));
  return read_range(
      tensor,
      shard.data_offset_bytes + tensor.begin_bytes + first_element * element_bytes(tensor.dtype),
      values);
}

std::string SafetensorsReader::place_of(std::string_view name) const {
  return shards_[shard_of_[by_name_.find(name)->second]].path;
}

void SafetensorsReader::start(Piece& piece, std::uint64_t offset_bytes,
                              std::uint64_t element_size_bytes, std::span<float> values) {
  const std::uint64_t begin = align_down(offset_bytes, kPageBytes);
  const std::uint64_t end = std::min(
      align_up(offset_bytes + values.size() * element_size_bytes, kPageBytes), file_->size_bytes());
  piece.head_bytes = offset_bytes - begin;
  piece.values = values;
  piece.request.prepare_read(*file_, begin, piece.memory.first(end - begin));
  queue_.submit(piece.request);
}

Status SafetensorsReader::read_range(const TensorInfo& tensor, std::uint64_t offset_bytes,
                                     std::span<float> values) {
  const std::uint64_t size = element_bytes(tensor.dtype);
  std::array<Piece, 2> pieces;
  const std::uint64_t half_bytes = staging_.size_bytes() / pieces.size();
  const std::uint64_t piece_elements = (half_bytes - 2 * kPageBytes) / size;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    pieces[i].memory = staging_.bytes().subspan(i * half_bytes, half_bytes);

  const std::uint64_t count = (values.size() + piece_elements - 1) / piece_elements;
  const auto start_piece = [&](std::uint64_t number) {
    const std::uint64_t first = number * piece_elements;
    start(pieces[number % 2], offset_bytes + first * size, size,
          values.subspan(first, std::min(piece_elements, values.size() - first)));
  };
  Status status;
  start_piece(0);
  for (std::uint64_t number = 0; number < count; ++number) {
    if (number + 1 < count) start_piece(number + 1);
    Piece& piece = pieces[number % 2];
    status = queue_.wait(piece.request);
    if (!status.ok()) {
      if (number + 1 < count) static_cast<void>(queue_.wait(pieces[(number + 1) % 2].request));
      break;
    }
    to_floats(tensor.dtype, piece.memory.subspan(piece.head_bytes, piece.values.size() * size),
              piece.values);
  }
  return status;
}

}  // namespace sluice::engine
