#include "engine/checkpoint/chunked_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "engine/checkpoint/checkpoint_names.h"

namespace sluice::engine {

Result<std::unique_ptr<ChunkedReader>> ChunkedReader::open(aio::IoQueue& queue,
                                                           const Source& source,
                                                           std::span<std::byte> staging) {
  const StoredFile& stored = source.manifest->files[source.file_number];
  const std::string path = source.folder + "/" + stored.name;
  auto file = aio::DirectFile::open(queue, path, {});
  if (!file.ok()) {
    if (file.error().code() != ErrorCode::kNotFound) return std::move(file).error();
    return Error(ErrorCode::kCorrupt, path + " is missing, but " + std::string(kManifestName) +
                                          " in the same folder lists it");
  }
  if ((*file)->size_bytes() != stored.bytes)
    return Error(ErrorCode::kCorrupt, path + " has " + std::to_string((*file)->size_bytes()) +
                                          " bytes, but had " + std::to_string(stored.bytes) +
                                          " when the checkpoint was written");
  return std::unique_ptr<ChunkedReader>(
      new ChunkedReader(queue, source, std::move(*file), staging));
}

ChunkedReader::ChunkedReader(aio::IoQueue& queue, const Source& source,
                             std::unique_ptr<aio::DirectFile> file, std::span<std::byte> staging)
    : queue_(queue),
      source_(source),
      stored_(source.manifest->files[source.file_number]),
      chunk_bytes_(source.manifest->chunk_bytes),
      file_(std::move(file)),
      piece_count_(staging.size() / chunk_bytes_),
      pieces_(new Piece[piece_count_]) {
  SLUICE_CHECK(piece_count_ >= 1 && staging.size() % chunk_bytes_ == 0, "pieces of whole chunks");
  for (std::size_t i = 0; i < piece_count_; ++i)
    pieces_[i].memory = staging.subspan(i * chunk_bytes_, chunk_bytes_);
}

ChunkedReader::~ChunkedReader() { forget_all(); }

std::span<std::byte> ChunkedReader::bytes_of(std::uint64_t index) {
  const std::uint64_t length = std::min(chunk_bytes_, stored_.bytes - index * chunk_bytes_);
  return piece_of(index).memory.first(length);
}

Status ChunkedReader::wait(Piece& piece) {
  if (!std::exchange(piece.in_flight, false)) return piece.request.status();
  return queue_.wait(piece.request);
}

void ChunkedReader::forget_all() {
  for (std::size_t i = 0; i < piece_count_; ++i) static_cast<void>(wait(pieces_[i]));
  begin_ = end_ = 0;
  verified_.reset();
}

void ChunkedReader::start(std::uint64_t index) {
  Piece& piece = piece_of(index);
  static_cast<void>(wait(piece));  // of a chunk that was skipped
  piece.request.prepare_read(*file_, index * chunk_bytes_, bytes_of(index));
  piece.in_flight = true;
  queue_.submit(piece.request);
}

// Starts reading chunk `index`, and the following ones if the access pattern is sequential.
void ChunkedReader::read_ahead(std::uint64_t index) {
  const bool in_order = asked_ && index == *asked_ + 1;
  window_ = in_order ? std::min<std::uint64_t>(2 * window_, piece_count_) : 1;
  asked_ = index;
  verified_.reset();
  if (index < begin_ || index >= end_) {
    forget_all();
    end_ = index;
  }
  begin_ = index;
  const std::uint64_t end = std::max(end_, std::min(index + window_, chunks()));
  while (end_ < end) start(end_++);
}

Status ChunkedReader::check(std::uint64_t index) {
  SLUICE_RETURN_IF_ERROR(wait(piece_of(index)));
  const std::uint64_t offset = index * chunk_bytes_;
  const auto bytes = bytes_of(index);
  const CheckpointChunk place{.file = source_.file_number, .offset_bytes = offset};
  if (checkpoint_hash(bytes, place) == stored_.chunks[index]) return {};
  return Error(
      ErrorCode::kCorrupt,
      path() + ": bytes " + std::to_string(offset) + " to " +
          std::to_string(offset + bytes.size()) +
          " do not match their checksum: the file is damaged, or belongs to another checkpoint");
}

Result<std::span<const std::byte>> ChunkedReader::chunk(std::uint64_t index) {
  SLUICE_CHECK(index < chunks(), "a chunk that the file does not have");
  if (verified_ != index) {
    read_ahead(index);
    if (Status status = check(index); !status.ok()) {
      forget_all();  // so that a retry reads it again
      return std::move(status).error();
    }
    verified_ = index;
  }
  return std::span<const std::byte>(bytes_of(index));
}

Status ChunkedReader::read(std::uint64_t offset_bytes, std::span<std::byte> to) {
  SLUICE_CHECK(offset_bytes <= stored_.bytes && to.size() <= stored_.bytes - offset_bytes,
               "a range outside of the file");
  while (!to.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto bytes, chunk(offset_bytes / chunk_bytes_));
    const std::uint64_t skip = offset_bytes % chunk_bytes_;
    const std::uint64_t count = std::min<std::uint64_t>(bytes.size() - skip, to.size());
    std::memcpy(to.data(), bytes.data() + skip, count);
    to = to.subspan(count);
    offset_bytes += count;
  }
  return {};
}

}  // namespace sluice::engine
