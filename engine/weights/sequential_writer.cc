#include "engine/weights/sequential_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"

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

}  // namespace sluice::engine
