#include "aio/block.h"

namespace sluice::aio {

std::uint64_t Block::make_transfer(IoKind direction, const Extent& whole, std::byte* user,
                                   std::uint64_t max_bytes, BounceBuffers& bounces) {
  Extent extent = whole;
  phase = Phase::kTransfer;
  kind = direction;
  file = extent.file;
  bounce = -1;
  const std::uint64_t sector = file->offset_alignment_bytes();  // 1 on buffered files
  const std::uint64_t into_sector = extent.offset_bytes % sector;
  if (into_sector != 0 || extent.length_bytes < sector) {  // a head or a tail: part of one sector
    extent.length_bytes = std::min(extent.length_bytes, sector - into_sector);
    return go_through_bounce(extent, user, bounces) ? extent.length_bytes : 0;
  }
  extent.length_bytes =
      align_down(std::min(extent.length_bytes, std::max(max_bytes, sector)), sector);
  if (reinterpret_cast<std::uintptr_t>(user) % file->memory_alignment_bytes() != 0) {
    extent.length_bytes = std::min(extent.length_bytes, BounceBuffers::kBytes);
    return go_through_bounce(extent, user, bounces) ? extent.length_bytes : 0;
  }
  const auto length = static_cast<std::uint32_t>(extent.length_bytes);
  aim(extent.offset_bytes, user, length, length);
  return extent.length_bytes;
}

bool Block::go_through_bounce(const Extent& extent, std::byte* user, BounceBuffers& bounces) {
  const std::uint64_t sector = file->offset_alignment_bytes();
  const std::uint64_t begin = align_down(extent.offset_bytes, sector);
  const std::uint64_t end = align_up(extent.offset_bytes + extent.length_bytes, sector);
  const bool modifies = kind == IoKind::kWrite && end - begin != extent.length_bytes;
  bounce =
      bounces.take({.file = file, .begin_bytes = begin, .end_bytes = end, .exclusive = modifies});
  if (bounce < 0) return false;
  user_data = user;
  user_skip = static_cast<std::uint32_t>(extent.offset_bytes - begin);
  user_length = static_cast<std::uint32_t>(extent.length_bytes);
  const auto length = static_cast<std::uint32_t>(end - begin);
  if (modifies) {
    phase = Phase::kReadToModify;
    kind = IoKind::kRead;
    // Bytes beyond the logical end are padding, which need not exist yet.
    const std::uint64_t existing = std::clamp(extent.file_end_bytes, begin, end) - begin;
    aim(begin, bounces.data(bounce), length, static_cast<std::uint32_t>(existing));
  } else {
    const std::uint32_t needed = kind == IoKind::kRead ? user_skip + user_length : length;
    aim(begin, bounces.data(bounce), length, needed);
  }
  return true;
}

}  // namespace sluice::aio
