#include "engine/module/spill_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/units.h"
#include "engine/device/host.h"
#include "swap/chunk_hash.h"

namespace sluice::engine {
namespace {

// A file has at least this size, if there is room, and new files grow with the existing total. So a
// few files hold any number of values.
constexpr std::uint64_t kSmallestFileBytes = 64 * kMiB;
constexpr std::uint64_t kLargestFileBytes = 16 * kGiB;
constexpr std::uint64_t kFilesPerDoubling = 4;

std::uint64_t chunks_of(std::uint64_t bytes) {
  return (bytes + SpillFiles::kChunkBytes - 1) / SpillFiles::kChunkBytes;
}

std::uint64_t chunk_bytes(std::uint64_t bytes, std::uint64_t chunk) {
  return std::min(SpillFiles::kChunkBytes, bytes - chunk * SpillFiles::kChunkBytes);
}

}  // namespace

Result<std::unique_ptr<SpillFiles>> SpillFiles::create(const config::Config& config,
                                                       std::vector<std::string> folders) {
  std::unique_ptr<SpillFiles> spill(new SpillFiles());
  spill->folders_ = std::move(folders);
  const auto& weights = config.placement.nvme_weights;
  if (weights && weights->size() == spill->folders_.size()) spill->weights_ = *weights;
  SLUICE_ASSIGN_OR_RETURN(spill->backend_, make_run_backend(config));
  SLUICE_ASSIGN_OR_RETURN(
      spill->queue_,
      aio::IoQueue::create(*spill->backend_,
                           {.block_bytes = static_cast<std::uint64_t>(config.aio.block_bytes),
                            .queue_depth = static_cast<int>(config.aio.queue_depth)}));
  if (config.run.io_watchdog_s > 0)
    spill->watchdog_ = std::make_unique<aio::IoWatchdog>(
        std::vector<const aio::IoQueue*>{spill->queue_.get()},
        aio::IoWatchdog::Options{.limit_ns =
                                     static_cast<std::int64_t>(config.run.io_watchdog_s * 1e9)});
  SLUICE_ASSIGN_OR_RETURN(spill->staging_,
                          aio::PageMemory::map(2 * kChunkBytes, /*huge_pages=*/false));
  spill->halves_[0].memory = spill->staging_.bytes().first(kChunkBytes);
  spill->halves_[1].memory = spill->staging_.bytes().subspan(kChunkBytes, kChunkBytes);
  return spill;
}

SpillFiles::~SpillFiles() { static_cast<void>(finish_all()); }

// ---- space --------------------------------------------------------------------------------------

Status SpillFiles::add_file(std::uint64_t bytes) {
  const std::uint64_t wanted = std::max(
      bytes,
      align_up(std::clamp(file_bytes_ / kFilesPerDoubling, kSmallestFileBytes, kLargestFileBytes),
               kAlignment));
  const auto open = [&](std::uint64_t size_bytes) {
    return aio::StripedFile::open(
        *queue_, folders_,
        {.weights = weights_,
         .file = {.open = {.access = aio::OpenOptions::Access::kReadWrite,
                           .create = aio::OpenOptions::Create::kAnonymous},
                  .size_bytes = size_bytes,
                  .overwritten = true}});
  };
  auto file = open(wanted);
  if (!file.ok() && file.error().code() == ErrorCode::kNoSpace && wanted > bytes)
    file = open(bytes);
  if (!file.ok()) return std::move(file).error();
  file_bytes_ += (*file)->size_bytes();
  files_.push_back({.file = *std::move(file)});
  return {};
}

Result<std::unique_ptr<SpillFiles::Value>> SpillFiles::take(std::uint64_t bytes) {
  const std::uint64_t padded = align_up(bytes, kAlignment);
  const auto has_room = [&](const Value::File& it) {
    return it.used_bytes + padded <= it.file->size_bytes();
  };
  if (files_.empty() || !has_room(files_.back())) SLUICE_RETURN_IF_ERROR(add_file(padded));
  auto value = std::make_unique<Value>();
  value->file_ = std::prev(files_.end());
  value->offset_bytes_ = value->file_->used_bytes;
  value->bytes_ = bytes;
  value->number_ = ++last_number_;
  value->file_->used_bytes += padded;
  ++value->file_->values;
  return value;
}

void SpillFiles::give_back(std::unique_ptr<Value> value) {
  forget(*value);
  if (--value->file_->values > 0) return;
  static_cast<void>(finish_all());  // a chunk that was read ahead may be in this file
  file_bytes_ -= value->file_->file->size_bytes();
  files_.erase(value->file_);
}

// ---- content ------------------------------------------------------------------------------------

Status SpillFiles::finish(Half& half) {
  if (!std::exchange(half.in_flight, false)) return {};
  Status ended = queue_->wait(half.request);
  if (!ended.ok()) half.number = 0;
  return ended;
}

Status SpillFiles::finish_all() {
  Status first = finish(halves_[0]);
  Status second = finish(halves_[1]);
  return first.ok() ? second : first;
}

void SpillFiles::forget(const Value& value) {
  for (Half& half : halves_)
    if (half.number == value.number_) half.number = 0;
}

std::uint64_t SpillFiles::hash_of(const Value& value, std::uint64_t chunk,
                                  std::span<const std::byte> bytes) const {
  return swap::chunk_hash(bytes, {.store_id = reinterpret_cast<std::uintptr_t>(this),
                                  .record = value.number_,
                                  .generation = value.generation_,
                                  .offset_bytes = chunk * kChunkBytes});
}

Status SpillFiles::check(const Value& value, std::uint64_t chunk,
                         std::span<const std::byte> bytes) const {
  if (hash_of(value, chunk, bytes) == value.hashes_[chunk]) return {};
  return Error(
      ErrorCode::kCorrupt,
      "the data read from " + value.file_->file->path() + " at offset " +
          std::to_string(value.offset_bytes_ + chunk * kChunkBytes) +
          " is not the data that was written: create the module again, and check the drive");
}

Status SpillFiles::write(Value& value, std::span<const std::byte> content) {
  SLUICE_RETURN_IF_ERROR(finish_all());
  forget(value);
  ++value.generation_;
  value.hashes_.assign(chunks_of(value.bytes_), 0);
  for (std::uint64_t chunk = 0; chunk < value.hashes_.size(); ++chunk) {
    Half& half = halves_[chunk % 2];
    if (Status before = finish(half); !before.ok()) {
      static_cast<void>(finish_all());
      return before;
    }
    const std::uint64_t bytes = chunk_bytes(value.bytes_, chunk);
    std::memcpy(half.memory.data(), content.data() + chunk * kChunkBytes, bytes);
    value.hashes_[chunk] = hash_of(value, chunk, half.memory.first(bytes));
    half.number = 0;
    half.request.prepare_write(*value.file_->file, value.offset_bytes_ + chunk * kChunkBytes,
                               half.memory.first(align_up(bytes, kAlignment)));
    half.in_flight = true;
    queue_->submit(half.request);
  }
  SLUICE_RETURN_IF_ERROR(finish_all());
  written_bytes_ += value.bytes_;
  return {};
}

Status SpillFiles::read(const Value& value, std::byte* to) {
  SLUICE_RETURN_IF_ERROR(queue_->read(*value.file_->file, value.offset_bytes_,
                                      {to, align_up(value.bytes_, kAlignment)}));
  read_bytes_ += value.bytes_;
  for (std::uint64_t chunk = 0; chunk < value.hashes_.size(); ++chunk)
    SLUICE_RETURN_IF_ERROR(
        check(value, chunk, {to + chunk * kChunkBytes, chunk_bytes(value.bytes_, chunk)}));
  return {};
}

void SpillFiles::start_read(const Value& value, std::uint64_t chunk, Half& half) {
  const std::uint64_t bytes = chunk_bytes(value.bytes_, chunk);
  half.number = value.number_;
  half.chunk = chunk;
  half.is_checked = false;
  half.request.prepare_read(*value.file_->file, value.offset_bytes_ + chunk * kChunkBytes,
                            half.memory.first(align_up(bytes, kAlignment)));
  half.in_flight = true;
  queue_->submit(half.request);
  read_bytes_ += bytes;
}

// Returns a checked chunk, and reads the next one ahead.
Result<SpillFiles::Half*> SpillFiles::chunk_of(const Value& value, std::uint64_t chunk) {
  const auto has = [&](const Half& half, std::uint64_t wanted) {
    return half.number == value.number_ && half.chunk == wanted;
  };
  Half& half = has(halves_[0], chunk) ? halves_[0] : halves_[1];
  SLUICE_RETURN_IF_ERROR(finish(half));
  if (!has(half, chunk)) start_read(value, chunk, half);
  SLUICE_RETURN_IF_ERROR(finish(half));
  if (!half.is_checked) {
    const Status whole = check(value, chunk, half.memory.first(chunk_bytes(value.bytes_, chunk)));
    if (!whole.ok()) half.number = 0;
    SLUICE_RETURN_IF_ERROR(whole);
    half.is_checked = true;
  }
  Half& other = &half == &halves_[0] ? halves_[1] : halves_[0];
  if (chunk + 1 < value.hashes_.size() && !has(other, chunk + 1) && finish(other).ok())
    start_read(value, chunk + 1, other);
  return &half;
}

Status SpillFiles::read_part(const Value& value, std::uint64_t offset_bytes,
                             std::span<std::byte> to) {
  while (!to.empty()) {
    const std::uint64_t chunk = offset_bytes / kChunkBytes;
    SLUICE_ASSIGN_OR_RETURN(const Half* const half, chunk_of(value, chunk));
    const std::uint64_t inside = offset_bytes - chunk * kChunkBytes;
    const std::uint64_t count =
        std::min<std::uint64_t>(to.size(), chunk_bytes(value.bytes_, chunk) - inside);
    std::memcpy(to.data(), half->memory.data() + inside, count);
    offset_bytes += count;
    to = to.subspan(count);
  }
  return {};
}

}  // namespace sluice::engine
