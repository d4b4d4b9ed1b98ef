#include "engine/weights/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<SequentialWriter>> SequentialWriter::create(aio::IoQueue& queue,
                                                                   const std::string& path,
                                                                   std::uint64_t size_bytes,
                                                                   std::span<std::byte> staging) {
  SLUICE_CHECK(staging.size() >= 2 * kPageBytes && staging.size() % (2 * kPageBytes) == 0,
               "two halves of whole pages");
  const Status removed = queue.backend().files().remove(path);
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound) return removed.error();
  SLUICE_ASSIGN_OR_RETURN(
      auto file, aio::DirectFile::open(queue, path,
                                       {.open = {.access = aio::OpenOptions::Access::kReadWrite,
                                                 .create = aio::OpenOptions::Create::kMustNotExist},
                                        .size_bytes = size_bytes}));
  return std::unique_ptr<SequentialWriter>(new SequentialWriter(queue, std::move(file), staging));
}

SequentialWriter::SequentialWriter(aio::IoQueue& queue, std::unique_ptr<aio::DirectFile> file,
                                   std::span<std::byte> staging)
    : queue_(queue), file_(std::move(file)) {
  const std::size_t half_bytes = staging.size() / halves_.size();
  for (std::size_t i = 0; i < halves_.size(); ++i)
    halves_[i].memory = staging.subspan(i * half_bytes, half_bytes);
}

SequentialWriter::~SequentialWriter() {
  for (Half& half : halves_) static_cast<void>(wait(half));
}

Status SequentialWriter::wait(Half& half) {
  if (std::exchange(half.in_flight, false)) {
    const Status& written = queue_.wait(half.request);
    if (status_.ok() && !written.ok()) status_ = written;
  }
  return status_;
}

Result<std::span<std::byte>> SequentialWriter::room() {
  Half& half = halves_[filling_];
  SLUICE_RETURN_IF_ERROR(wait(half));
  const std::uint64_t left_bytes = file_->size_bytes() - submitted_bytes_ - filled_bytes_;
  const auto room = half.memory.subspan(filled_bytes_);
  return room.first(std::min<std::uint64_t>(room.size(), left_bytes));
}

Status SequentialWriter::commit(std::uint64_t count_bytes) {
  Half& half = halves_[filling_];
  filled_bytes_ += count_bytes;
  SLUICE_CHECK(filled_bytes_ <= half.memory.size() &&
                   submitted_bytes_ + filled_bytes_ <= file_->size_bytes(),
               "more bytes than room() had");
  const bool full = submitted_bytes_ + filled_bytes_ == file_->size_bytes();
  if (filled_bytes_ < half.memory.size() && !full) return status_;
  if (filled_bytes_ == 0) return status_;
  half.request.prepare_write(*file_, submitted_bytes_, half.memory.first(filled_bytes_));
  half.in_flight = true;
  queue_.submit(half.request);
  submitted_bytes_ += std::exchange(filled_bytes_, 0);
  filling_ = 1 - filling_;
  return status_;
}

Status SequentialWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto space, room());
    SLUICE_CHECK(!space.empty(), "more bytes than the file has");
    const std::size_t count = std::min(space.size(), bytes.size());
    std::memcpy(space.data(), bytes.data(), count);
    SLUICE_RETURN_IF_ERROR(commit(count));
    bytes = bytes.subspan(count);
  }
  return {};
}

Status SequentialWriter::finish() {
  SLUICE_CHECK(submitted_bytes_ == file_->size_bytes(), "finish() of a file that is not full");
  for (Half& half : halves_) SLUICE_RETURN_IF_ERROR(wait(half));
  if (status_.ok()) status_ = file_->finish();
  return status_;
}

namespace {

constexpr std::uint64_t kMinStagingBytes = 64 * kKiB;
constexpr std::string_view kSuffix = ".safetensors";

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The number of `tensors` in the next shard: as many as fit, and at least one. Tensors without
// elements always fit.
std::size_t shard_length(std::span<const TensorInfo> tensors, std::uint64_t max_bytes) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes += tensors[i].size_bytes;
    if (i > 0 && max_bytes > 0 && bytes > max_bytes && tensors[i].size_bytes > 0) return i;
  }
  return tensors.size();
}

Status check_declaration(const std::string& path, std::span<const TensorSpec> tensors) {
  const std::string name = path.substr(path.rfind('/') + 1);
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size())
    return Error(ErrorCode::kInvalidArgument,
                 "the name of a file of weights must end in .safetensors, unlike " + path);
  for (const TensorSpec& tensor : tensors) {
    if (!is_weight_dtype(tensor.dtype))
      return Error(ErrorCode::kInvalidArgument,
                   "tensor " + in_quotes(tensor.name) + " cannot be stored as " +
                       std::string(to_string(tensor.dtype)) + ", only as F16, BF16, F32 or F64");
  }
  return {};
}

}  // namespace

Result<std::vector<SafetensorsWriter::Shard>> SafetensorsWriter::plan(
    const Options& options, std::span<const TensorSpec> tensors) {
  SLUICE_RETURN_IF_ERROR(check_declaration(options.path, tensors));
  SLUICE_ASSIGN_OR_RETURN(const auto whole, lay_out(tensors));
  std::vector<Shard> shards;
  for (std::size_t first = 0; first < whole.size() || shards.empty();) {
    const std::size_t count =
        shard_length(std::span(whole).subspan(first), options.max_shard_bytes);
    Shard shard;
    SLUICE_ASSIGN_OR_RETURN(shard.tensors, lay_out(tensors.subspan(first, count)));
    shard.header = make_safetensors_header(shard.tensors, options.metadata);
    shard.file_bytes = shard.header.size();
    for (const TensorInfo& tensor : shard.tensors) shard.file_bytes += tensor.size_bytes;
    shards.push_back(std::move(shard));
    first += count;
  }
  if (shards.size() > kMaxShards)
    return Error(ErrorCode::kInvalidArgument, "shards of " + format_bytes(options.max_shard_bytes) +
                                                  " would be " + std::to_string(shards.size()) +
                                                  " files; make them larger");
  for (std::size_t i = 0; i < shards.size(); ++i)
    shards[i].path = shard_path(options.path, i, shards.size());
  return shards;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    aio::IoQueue& queue, Options options, std::span<const TensorSpec> tensors) {
  SLUICE_ASSIGN_OR_RETURN(auto shards, plan(options, tensors));
  const std::uint64_t staging_bytes =
      align_up(std::max(options.staging_bytes, kMinStagingBytes), 2 * kPageBytes);
  SLUICE_ASSIGN_OR_RETURN(auto staging, aio::PageMemory::map(staging_bytes, true));
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(queue, std::move(options), std::move(staging), std::move(shards)));
  SLUICE_RETURN_IF_ERROR(writer->check_room());
  SLUICE_RETURN_IF_ERROR(writer->begin_shard());
  return writer;
}

SafetensorsWriter::SafetensorsWriter(aio::IoQueue& queue, Options options, aio::PageMemory staging,
                                     std::vector<Shard> shards)
    : queue_(queue),
      options_(std::move(options)),
      staging_(std::move(staging)),
      shards_(std::move(shards)) {
  for (const Shard& shard : shards_) total_bytes_ += shard.file_bytes;
}

SafetensorsWriter::~SafetensorsWriter() {
  file_.reset();
  if (finished_) return;
  for (std::size_t i = 0; i < files_made_; ++i)
    static_cast<void>(queue_.backend().files().remove(fresh_path(shards_[i])));
}

// Each shard reserves its space when it begins; this check fails before the first one is written.
Status SafetensorsWriter::check_room() const {
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free_bytes,
                          queue_.backend().files().free_bytes(folder_of(options_.path)));
  if (total_bytes_ <= free_bytes) return {};
  return Error(ErrorCode::kNoSpace, "no room for " + format_bytes(total_bytes_) + " at " +
                                        options_.path + ": " + format_bytes(free_bytes) +
                                        " are free. Free some space there, or choose another path");
}

Status SafetensorsWriter::begin_shard() {
  const Shard& shard = shards_[shard_];
  SLUICE_ASSIGN_OR_RETURN(file_, SequentialWriter::create(queue_, fresh_path(shard),
                                                          shard.file_bytes, staging_.bytes()));
  files_made_ = shard_ + 1;
  SLUICE_RETURN_IF_ERROR(file_->write(std::as_bytes(std::span(shard.header))));
  return skip_full();
}

// Moves on to the next tensor that needs values, across shards if necessary.
Status SafetensorsWriter::skip_full() {
  const auto& tensors = shards_[shard_].tensors;
  while (tensor_ < tensors.size() && elements_done_ == tensors[tensor_].elements) {
    ++tensor_;
    elements_done_ = 0;
  }
  if (tensor_ < tensors.size()) return {};
  SLUICE_RETURN_IF_ERROR(file_->finish());
  file_.reset();
  tensor_ = 0;
  return ++shard_ < shards_.size() ? begin_shard() : Status();
}

Status SafetensorsWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return status_;
}

Status SafetensorsWriter::append(std::string_view name, std::span<const float> values) {
  if (!status_.ok()) return status_;
  const auto refuse = [&](const std::string& what) {
    return fail(Error(ErrorCode::kInvalidArgument, options_.path + ": " + what));
  };
  if (values.empty()) return {};
  if (shard_ == shards_.size())
    return refuse("values of tensor " + in_quotes(name) + " come after the last tensor");
  if (name != tensor().name)
    return refuse("values of tensor " + in_quotes(name) + " was given, but element " +
                  std::to_string(elements_done_) + " of " + in_quotes(tensor().name) +
                  " must be next");
  if (values.size() > tensor().elements - elements_done_)
    return refuse("tensor " + in_quotes(name) + " has " + std::to_string(tensor().elements) +
                  " elements, and " + std::to_string(elements_done_ + values.size()) + " came");
  return fail(put(values));
}

Status SafetensorsWriter::put(std::span<const float> values) {
  // Elements begin at multiples of their size, also in the file, so none crosses a staging half.
  const std::uint64_t size = element_bytes(tensor().dtype);
  while (!values.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto room, file_->room());
    const std::uint64_t count = std::min<std::uint64_t>(values.size(), room.size() / size);
    from_floats(tensor().dtype, values.first(count), room.first(count * size));
    SLUICE_RETURN_IF_ERROR(file_->commit(count * size));
    elements_done_ += count;
    values = values.subspan(count);
  }
  return skip_full();
}

Status SafetensorsWriter::finish() {
  if (!status_.ok()) return status_;
  if (finished_) return {};
  if (shard_ < shards_.size())
    return Error(ErrorCode::kInvalidArgument, options_.path + ": tensor " +
                                                  in_quotes(tensor().name) + " has " +
                                                  std::to_string(elements_done_) + " of its " +
                                                  std::to_string(tensor().elements) + " elements");
  SLUICE_RETURN_IF_ERROR(fail(publish()));
  finished_ = true;
  return {};
}

Status SafetensorsWriter::publish() {
  aio::FileSystem& files = queue_.backend().files();
  std::uint64_t data_bytes = 0;
  std::map<std::string, std::string> weights;
  for (const Shard& shard : shards_) {
    SLUICE_RETURN_IF_ERROR(files.rename(fresh_path(shard), shard.path));
    for (const TensorInfo& info : shard.tensors) {
      weights.emplace(info.name, shard.path.substr(shard.path.rfind('/') + 1));
      data_bytes += info.size_bytes;
    }
  }
  SLUICE_RETURN_IF_ERROR(files.sync_directory(folder_of(options_.path)));
  if (shards_.size() == 1) return {};
  return aio::write_small_file(queue_, options_.path + ".index.json",
                               make_safetensors_index(weights, data_bytes));
}

std::vector<std::string> SafetensorsWriter::paths() const {
  std::vector<std::string> paths;
  paths.reserve(shards_.size());
  for (const Shard& shard : shards_) paths.push_back(shard.path);
  return paths;
}

}  // namespace sluice::engine
