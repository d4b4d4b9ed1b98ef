// UringRing: one io_uring and the only thread that uses it. Part of UringBackend.
//
// Only the ring's thread touches the ring, which SINGLE_ISSUER requires and which makes locks
// unnecessary. Other threads put operations into an inbox. If the ring's thread sleeps in the
// kernel, they wake it through an eventfd that the ring itself polls.
//
// Errors:  start() runs one no-op, to detect a kernel or container that sets up rings but then
//          refuses io_uring_enter. If io_uring_enter fails later, and keeps failing
//          (kMaxEnterTries), the ring gives up: all operations that the kernel has not taken, now
//          or later, end with ENOTRECOVERABLE.
// Memory:  operations that the kernel has taken end only when the kernel is done with their memory,
//          even after giving up. Results arrive in shared memory without io_uring_enter, and the
//          rings have room for all of them. So no buffer is ever returned while the kernel may
//          write to it.
#pragma once

#include <liburing.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "aio/io_backend.h"
#include "aio/result.h"

namespace sluice::aio {

// A singly linked list of operations, through IoOp::next.
struct OpList {
  IoOp* first = nullptr;
  IoOp* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push_back(IoOp* op) {
    op->next = nullptr;
    (first == nullptr ? first : last->next) = op;
    last = op;
  }
  IoOp* pop_front() {
    IoOp* op = first;
    first = op->next;
    if (first == nullptr) last = nullptr;
    return op;
  }
  void append(OpList& other) {
    if (other.empty()) return;
    (first == nullptr ? first : last->next) = other.first;
    last = other.last;
    other = {};
  }
};

class UringRing {
 public:
  struct Options {
    int queue_depth = 32;
    bool single_submit = false;
    const void* owner = nullptr;  // the backend, stored in File::attached_to of its files
    unsigned file_slots = 0;  // size of the sparse tables of registered files and memory; 0: none
    unsigned memory_slots = 0;
  };

  UringRing() = default;
  ~UringRing();  // only after every submitted op has completed or failed
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // Starts the thread, which creates the ring and tests it. kUnsupported: io_uring is refused.
  Status start(const Options& options, const Clock& clock);

  void submit(std::span<IoOp* const> ops) noexcept;       // from any other thread
  void submit_here(std::span<IoOp* const> ops) noexcept;  // from this ring's own thread
  static UringRing* current();                            // the ring of the calling thread, or null

  bool has_file_slots() const { return has_file_slots_; }
  bool has_memory_slots() const { return has_memory_slots_; }
  // Return 0 or -errno. They run on the ring's thread, between operations; the caller waits.
  int set_file(unsigned slot, int descriptor);  // -1 empties the slot
  int set_memory(unsigned slot, std::span<std::byte> memory);
  void clear_memory(unsigned slot);

 private:
  struct Region {
    const std::byte* begin;
    const std::byte* end;
    unsigned slot;
  };

  Status make_ring(const Options& options);
  void run();
  void take_inbox();
  void start_ops();
  void prepare(io_uring_sqe& sqe, const IoOp& op);
  int find_memory(const IoOp& op) const;
  void enter();
  void judge_enter(int result, std::int64_t entered_ns, bool did_nothing);
  void give_up(int error_number);
  void fail_waiting();
  void wait_without_entering();
  void reap();
  void arm_wake();
  void start_delayed();
  void wake();
  int run_on_thread(const std::function<int()>& task);

  // Set once by start().
  const Clock* clock_ = nullptr;
  const void* owner_ = nullptr;
  int queue_depth_ = 0;
  int hand_over_ = 1;  // operations prepared before they are submitted
  bool has_file_slots_ = false;
  bool has_memory_slots_ = false;
  int wake_descriptor_ = -1;
  std::thread thread_;

  // Used only by the ring's thread.
  io_uring ring_{};
  OpList ready_;                // to be started, oldest first
  std::vector<IoOp*> delayed_;  // heap, earliest first; delay_ns holds the absolute start time
  int in_kernel_ = 0;
  bool wake_armed_ = false;
  std::uint64_t wake_count_ = 0;  // the kernel writes the eventfd's value here
  std::vector<Region> regions_;   // sorted by address
  int enter_failures_ = 0;        // consecutive
  std::int64_t last_failure_ns_ = 0;

  std::mutex mutex_;
  OpList inbox_;  // guarded by mutex_, like the next two
  std::vector<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::atomic<bool> inbox_filled_{false};  // a hint that saves the ring's thread from locking
  std::atomic<bool> asleep_{false};        // the ring's thread may be in the kernel
  std::atomic<bool> given_up_{false};      // set once, under mutex_, by the ring's thread
  std::condition_variable inbox_changed_;  // wakes the ring's thread after it has given up
};

}  // namespace sluice::aio
