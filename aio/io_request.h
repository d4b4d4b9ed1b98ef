// IoRequest: one read, write or sync of any length at any offset, and how its end is reported.
//
// Owned by the caller, reusable, neither copied nor moved: the queue links it in place, so that
// submitting allocates nothing. It must outlive its completion; destroying a request in flight is a
// bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aio/check.h"
#include "aio/io_backend.h"
#include "aio/io_target.h"
#include "aio/result.h"

namespace sluice::aio {

class IoRequest {
 public:
  // Runs once when the request has ended, on a thread of the backend: it must be short and never
  // block. The request may be reused or destroyed by then. It may submit to the queue.
  using Callback = void (*)(IoRequest& request, void* context) noexcept;

  IoRequest() = default;
  IoRequest(const IoRequest&) = delete;
  IoRequest& operator=(const IoRequest&) = delete;
  ~IoRequest() { SLUICE_CHECK(!in_flight_, "an IoRequest was destroyed while in flight"); }

  void prepare_read(const IoTarget& target, std::uint64_t offset_bytes, std::span<std::byte> data) {
    prepare(IoKind::kRead, target, offset_bytes, data.data(), data.size());
  }
  void prepare_write(const IoTarget& target, std::uint64_t offset_bytes,
                     std::span<const std::byte> data) {
    // The queue never writes through the pointer of a write.
    prepare(IoKind::kWrite, target, offset_bytes,
            const_cast<std::byte*>(data.data()),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
            data.size());
  }
  // Makes durable everything that was written and completed before this request is submitted.
  void prepare_sync(const IoTarget& target) { prepare(IoKind::kSync, target, 0, nullptr, 0); }

  void set_callback(Callback callback, void* context) {
    callback_ = callback;
    context_ = context;
  }

  // Says in a word or two what the request moves, for observers; the text must live as long as the
  // program.
  void set_label(const char* label) { label_ = label; }

  // The result of the request; valid from the callback on, or after IoQueue::wait() returned.
  const Status& status() const { return status_; }

  IoKind kind() const { return kind_; }
  std::uint64_t offset_bytes() const { return offset_bytes_; }
  std::uint64_t length_bytes() const { return length_bytes_; }
  // From submission to the end, by the backend's clock.
  std::int64_t latency_ns() const { return latency_ns_; }
  const char* label() const { return label_; }
  // When its first block went to the backend; valid once the request has ended.
  std::int64_t begin_ns() const { return begin_ns_; }

 private:
  friend class IoQueue;
  static constexpr std::int64_t kNotBegun = -1;

  void prepare(IoKind kind, const IoTarget& target, std::uint64_t offset_bytes, std::byte* data,
               std::uint64_t length_bytes) {
    SLUICE_CHECK(!in_flight_, "an IoRequest was changed while in flight");
    kind_ = kind;
    target_ = &target;
    offset_bytes_ = offset_bytes;
    data_ = data;
    length_bytes_ = length_bytes;
  }

  IoKind kind_ = IoKind::kNop;
  const IoTarget* target_ = nullptr;
  std::uint64_t offset_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::uint64_t length_bytes_ = 0;
  Callback callback_ = nullptr;
  void* context_ = nullptr;
  std::int64_t latency_ns_ = 0;
  const char* label_ = "data";

  // For the queue, under its lock, while the request is in flight.
  Status status_;
  std::uint64_t started_bytes_ = 0;  // bytes (or, for a sync, files) passed to blocks so far
  std::uint32_t blocks_in_flight_ = 0;
  bool in_flight_ = false;
  bool pending_ = false;  // in the queue's list: not fully split yet
  bool stopped_ = false;  // failed or cancelled: no more blocks are started
  std::int64_t submitted_ns_ = 0;
  std::int64_t begin_ns_ = kNotBegun;
  IoRequest* next_ = nullptr;
};

}  // namespace sluice::aio
