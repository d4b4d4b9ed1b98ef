// Block: one slot of an IoQueue: the transfer that the backend is doing for it, and what remains of
// the transfer. Part of IoQueue.
//
// A block is either direct (between the drive and the caller's memory), or goes through a bounce
// buffer. A write of part of a sector takes two transfers: a read of the sector, then its write.
//
// Threads: until it is submitted a block belongs to the queue, under the queue's lock. Then it
//          belongs to the backend thread that finishes it, until the queue frees the slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aio/bounce_buffers.h"
#include "aio/io_backend.h"
#include "aio/io_request.h"
#include "aio/io_target.h"
#include "aio/units.h"

namespace sluice::aio {

class IoQueue;

struct Block : IoOp {
  enum class Phase : std::uint8_t {
    kTransfer,
    kReadToModify,  // the write of the sector follows
    kEndOnly,       // no transfer: carries the end of a request to the backend's thread
  };

  // The queue's bookkeeping.
  IoQueue* queue = nullptr;
  IoRequest* request = nullptr;
  Block* next_free = nullptr;
  bool used = false;
  int retries = 0;  // since it last made progress
  std::int64_t submitted_ns = 0;

  // The whole transfer; the offset, data and length of IoOp are what remains of it.
  Phase phase = Phase::kTransfer;
  std::uint64_t begin_bytes = 0;
  std::byte* memory = nullptr;
  std::uint32_t total_bytes = 0;
  std::uint32_t needed_bytes = 0;  // enough; the rest is beyond the end of the file
  std::uint64_t moved_bytes = 0;

  // Through a bounce buffer: bytes [user_skip, user_skip + user_length) of the buffer are the
  // caller's.
  int bounce = -1;
  std::byte* user_data = nullptr;
  std::uint32_t user_skip = 0;
  std::uint32_t user_length = 0;

  void make_end_only() {
    phase = Phase::kEndOnly;
    kind = IoKind::kNop;
    file = nullptr;
    bounce = -1;
    aim(0, nullptr, 0, 0);
  }

  void make_sync(File& target) {
    phase = Phase::kTransfer;
    kind = IoKind::kSync;
    file = &target;
    bounce = -1;
    aim(0, nullptr, 0, 0);
  }

  // Turns the block into a transfer of the start of the extent, as much as one block can carry.
  // Returns the number of bytes, or 0 if the bounce buffer or the sector that it needs is in use.
  std::uint64_t make_transfer(IoKind direction, const Extent& extent, std::byte* user,
                              std::uint64_t max_bytes, BounceBuffers& bounces);

  void copy_in() const { std::memcpy(memory + user_skip, user_data, user_length); }
  void copy_out() const { std::memcpy(user_data, memory + user_skip, user_length); }

  // Whether to copy before a write through a bounce buffer; not for a read-modify-write, which
  // reads first.
  bool copies_in_first() const {
    return bounce >= 0 && kind == IoKind::kWrite && phase == Phase::kTransfer;
  }

  // After the sector has been read: copies the caller's bytes over it, zeros the bytes beyond the
  // end of the file, and prepares to write it back.
  void turn_into_write() {
    std::memset(memory + moved_bytes, 0, total_bytes - moved_bytes);
    copy_in();
    phase = Phase::kTransfer;
    kind = IoKind::kWrite;
    aim(begin_bytes, memory, total_bytes, total_bytes);
  }

  // Points at the remaining bytes, from the last whole sector on. A transfer may return a count
  // that is not a multiple of a sector, but a direct transfer cannot begin there.
  void aim_at_rest() {
    moved_bytes = align_down(moved_bytes, file->offset_alignment_bytes());
    delay_ns = 0;
    offset_bytes = begin_bytes + moved_bytes;
    data = memory + moved_bytes;
    length_bytes = static_cast<std::uint32_t>(total_bytes - moved_bytes);
  }

 private:
  void aim(std::uint64_t offset, std::byte* to, std::uint32_t length, std::uint32_t needed) {
    begin_bytes = offset;
    memory = to;
    total_bytes = length;
    needed_bytes = needed;
    moved_bytes = 0;
    retries = 0;
    offset_bytes = offset;
    data = to;
    length_bytes = length;
    delay_ns = 0;
  }
  bool go_through_bounce(const Extent& extent, std::byte* user, BounceBuffers& bounces);
};

}  // namespace sluice::aio
