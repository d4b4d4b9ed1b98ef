#include "engine/device/host_copies.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace sluice::engine {

HostCopies::HostCopies(HostPinning& pinning, CopyStream& stream, Buffer buffer)
    : pinning_(pinning), stream_(stream) {
  if (buffer == Buffer::kIfRefused && pinning.refused_bytes() == 0) return;
  for (std::uint64_t bytes = kBufferBytes; bytes >= kLeastBufferBytes; bytes /= 2) {
    auto memory = aio::PageMemory::map(bytes, /*huge_pages=*/false);
    if (!memory.ok()) continue;
    const auto pinned = pinning.pin(memory->bytes(), HostPinning::OnRefusal::kSayNothing);
    if (pinned.ok() && *pinned) {
      buffer_ = *std::move(memory);
      return;
    }
    if (!pinned.ok()) return;  // the first copy reports what is wrong with the GPU
    pinning.unpin(memory->bytes());
  }
}

HostCopies::~HostCopies() {
  if (buffer_.size_bytes() > 0) pinning_.unpin(buffer_.bytes());
}

HostCopies::Way HostCopies::way_for(std::span<const std::byte> host) const {
  if (pinning_.is_pinned(host)) return Way::kAtOnce;
  return buffer_.size_bytes() > 0 ? Way::kInPieces : Way::kWaiting;
}

Status HostCopies::copy_on_host(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes;
  };
  auto piece = std::make_unique<Piece>(Piece{.to = to, .from = from, .bytes = bytes});
  SLUICE_RETURN_IF_ERROR(stream_.call(
      [](void* it) noexcept {
        const std::unique_ptr<Piece> now(static_cast<Piece*>(it));
        std::memcpy(now->to, now->from, now->bytes);
      },
      piece.get()));
  static_cast<void>(piece.release());
  return {};
}

// The stream's order keeps a piece in the buffer until it has been copied on.
Status HostCopies::to_device(void* to, std::span<const std::byte> from) {
  const Way way = way_for(from);
  // A driver may read pageable memory at once, before what the stream still waits for.
  if (way == Way::kWaiting) SLUICE_RETURN_IF_ERROR(stream_.wait());
  if (way != Way::kInPieces) return stream_.to_device(to, from);
  for (std::uint64_t at = 0; at < from.size(); at += buffer_.size_bytes()) {
    const std::uint64_t bytes = std::min(buffer_.size_bytes(), from.size() - at);
    SLUICE_RETURN_IF_ERROR(copy_on_host(buffer_.data(), from.data() + at, bytes));
    SLUICE_RETURN_IF_ERROR(
        stream_.to_device(static_cast<std::byte*>(to) + at, buffer_.bytes().first(bytes)));
  }
  return {};
}

Status HostCopies::to_host(std::span<std::byte> to, const void* from) {
  const Way way = way_for(to);
  if (way != Way::kInPieces) {
    SLUICE_RETURN_IF_ERROR(stream_.to_host(to, from));
    return way == Way::kWaiting ? stream_.wait() : Status();
  }
  for (std::uint64_t at = 0; at < to.size(); at += buffer_.size_bytes()) {
    const std::uint64_t bytes = std::min(buffer_.size_bytes(), to.size() - at);
    SLUICE_RETURN_IF_ERROR(
        stream_.to_host(buffer_.bytes().first(bytes), static_cast<const std::byte*>(from) + at));
    SLUICE_RETURN_IF_ERROR(copy_on_host(to.data() + at, buffer_.data(), bytes));
  }
  return {};
}

}  // namespace sluice::engine
