#include "engine/checkpoint/chunked_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "engine/checkpoint/checkpoint_manifest.h"

namespace sluice::engine {
namespace {

aio::OpenOptions writing(aio::OpenOptions::Create create) {
  return {.access = aio::OpenOptions::Access::kReadWrite, .create = create};
}

}  // namespace

Status ChunkedWriter::reserve(aio::IoQueue& queue, const std::string& path, std::uint64_t bytes) {
  return aio::DirectFile::open(
             queue, path,
             {.open = writing(aio::OpenOptions::Create::kMustNotExist), .size_bytes = bytes})
      .status();
}

Result<std::unique_ptr<ChunkedWriter>> ChunkedWriter::open(aio::IoQueue& queue,
                                                           const Target& target,
                                                           std::span<std::byte> staging) {
  SLUICE_CHECK(staging.size() >= 2 * target.chunk_bytes && staging.size() % target.chunk_bytes == 0,
               "two pieces of whole chunks at least");
  SLUICE_ASSIGN_OR_RETURN(
      auto file, aio::DirectFile::open(
                     queue, target.path,
                     {.open = writing(aio::OpenOptions::Create::kIfMissing),
                      .size_bytes = target.bytes,
                      .preallocate = false}));  // reserve() allocated the space, and it is kept
  return std::unique_ptr<ChunkedWriter>(new ChunkedWriter(queue, target, std::move(file), staging));
}

ChunkedWriter::ChunkedWriter(aio::IoQueue& queue, const Target& target,
                             std::unique_ptr<aio::DirectFile> file, std::span<std::byte> staging)
    : queue_(queue),
      target_(target),
      file_(std::move(file)),
      piece_count_(staging.size() / target.chunk_bytes),
      pieces_(new Piece[piece_count_]) {
  for (std::size_t i = 0; i < piece_count_; ++i)
    pieces_[i].memory = staging.subspan(i * target_.chunk_bytes, target_.chunk_bytes);
  checksums_.reserve((target_.bytes - 1) / target_.chunk_bytes + 1);
}

ChunkedWriter::~ChunkedWriter() {
  for (std::size_t i = 0; i < piece_count_; ++i) static_cast<void>(wait(pieces_[i]));
}

Status ChunkedWriter::wait(Piece& piece) {
  if (std::exchange(piece.in_flight, false)) {
    const Status& written = queue_.wait(piece.request);
    if (status_.ok() && !written.ok()) status_ = written;
  }
  return status_;
}

void ChunkedWriter::submit(Piece& piece, std::uint64_t length_bytes) {
  const auto chunk = piece.memory.first(length_bytes);
  checksums_.push_back(
      checkpoint_hash(chunk, {.file = target_.file_number, .offset_bytes = submitted_bytes_}));
  piece.request.prepare_write(*file_, submitted_bytes_, chunk);
  piece.in_flight = true;
  queue_.submit(piece.request);
  submitted_bytes_ += length_bytes;
}

Status ChunkedWriter::write(std::span<const std::byte> bytes) {
  SLUICE_CHECK(bytes.size() <= target_.bytes - submitted_bytes_ - filled_bytes_,
               "more bytes than the file has");
  while (!bytes.empty()) {
    Piece& piece = pieces_[filling_];
    SLUICE_RETURN_IF_ERROR(wait(piece));
    const std::uint64_t length = std::min(target_.chunk_bytes, target_.bytes - submitted_bytes_);
    const std::uint64_t count = std::min<std::uint64_t>(length - filled_bytes_, bytes.size());
    std::memcpy(piece.memory.data() + filled_bytes_, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled_bytes_ += count;
    if (filled_bytes_ < length) return status_;
    submit(piece, length);
    filled_bytes_ = 0;
    filling_ = (filling_ + 1) % piece_count_;
  }
  return status_;
}

Status ChunkedWriter::finish() {
  SLUICE_CHECK(submitted_bytes_ == target_.bytes, "finish() of a file that is not full");
  for (std::size_t i = 0; i < piece_count_; ++i) SLUICE_RETURN_IF_ERROR(wait(pieces_[i]));
  if (status_.ok()) status_ = file_->finish();
  return status_;
}

}  // namespace sluice::engine
