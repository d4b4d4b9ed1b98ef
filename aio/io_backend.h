// IoBackend: moves blocks between memory and files, many at a time.
//
// This is the lowest contract: one IoOp is one system-level transfer, and its result is what the
// kernel reported, short counts and errors included. IoQueue, the layer above, does splitting,
// alignment, retries and waiting.
//
// Implementations: UringBackend (io_uring), PosixBackend (threads with preadv/pwritev), and for
// tests FaultBackend (wraps another, injects failures) and SimDrive (memory and virtual time).
//
// Memory:  an IoOp belongs to its submitter and must not move until its on_done has run. Calling
//          submit() allocates nothing, so the submitters' own fixed slots bound what can be in
//          flight.
// Threads: submit() from any thread, including from on_done (which saves a wake-up). The callback
//          on_done runs once per op, on a thread of the backend, never inside submit(). Backends in
//          virtual time run it inside pump().
// Errors:  none from submit(): every failure is a result. Attaching files and memory only makes
//          transfers cheaper; if it is refused, this is logged once and everything still works.
// Shutdown: the destructor waits for every op in flight; nothing may be submitted from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "aio/clock.h"
#include "aio/file_system.h"
#include "aio/result.h"

namespace sluice::aio {

enum class IoKind : std::uint8_t {
  kRead,
  kWrite,
  kSync,  // makes bytes of the file durable that were written and completed before submission
  kNop,   // does nothing: completes with result 0 (used by fault injection)
};

std::string_view to_string(IoKind kind);

struct IoOp {
  IoKind kind = IoKind::kNop;
  File* file = nullptr;
  std::uint64_t offset_bytes = 0;
  std::byte* data = nullptr;  // only read from when kind is kWrite
  std::uint32_t length_bytes = 0;
  std::int64_t delay_ns = 0;  // start no earlier than this after submit(): back-off of a retry
  // result: bytes transferred (maybe fewer than requested), or -errno.
  void (*on_done)(IoOp& op, std::int64_t result) noexcept = nullptr;

  IoOp* next = nullptr;  // for the backend, while the op is in flight
};

enum class PumpResult : std::uint8_t {
  kThreaded,    // this backend has its own threads: block instead
  kProgressed,  // virtual time advanced; completions may have run
  kIdle,        // virtual time, and nothing is left that could complete
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  IoBackend() = default;
  IoBackend(const IoBackend&) = delete;
  IoBackend& operator=(const IoBackend&) = delete;

  virtual std::string_view name() const = 0;
  virtual FileSystem& files() = 0;
  virtual const Clock& clock() const = 0;

  virtual void submit(std::span<IoOp* const> ops) noexcept = 0;

  // Backends in virtual time work here, on the caller's thread.
  virtual PumpResult pump() { return PumpResult::kThreaded; }

  // Announces a file that will see many operations. Detach before closing it, with nothing in
  // flight.
  virtual void attach(File& file) { static_cast<void>(file); }
  virtual void detach(File& file) { static_cast<void>(file); }

  // Announces memory that will be the source or target of many operations; operations inside it are
  // recognised by address. False: not registered, but it works the same.
  virtual bool attach_memory(std::span<std::byte> memory) {
    static_cast<void>(memory);
    return false;
  }
  virtual void detach_memory(std::span<std::byte> memory) { static_cast<void>(memory); }
};

}  // namespace sluice::aio
