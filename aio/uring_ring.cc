#include "aio/uring_ring.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <system_error>
#include <thread>

#include "aio/io_thread.h"
#include "aio/log.h"
#include "aio/result.h"
#include "aio/retry_policy.h"
#include "aio/uring_setup.h"

namespace sluice::aio {
namespace {

constexpr std::uint64_t kWakeTag = 0;  // user_data of the eventfd's read; an op uses its address
constexpr int kReapBatch = 128;
// Submitting 32 operations of 4 KiB in groups of four gave 5 to 15% more operations per second than
// all at once, for the same CPU time (bench/history.md).
constexpr int kHandOver = 4;

thread_local UringRing* current_ring = nullptr;

// The heap of delayed ops has the earliest on top.
bool starts_later(const IoOp* a, const IoOp* b) { return a->delay_ns > b->delay_ns; }

// Failures of io_uring_enter further apart than this are unrelated: consecutive ones come at most a
// second apart.
constexpr std::int64_t kUnrelatedNs = 2'000'000'000;
// How often a ring that has given up checks for results from the kernel.
constexpr std::chrono::milliseconds kLookAgain{1};

bool is_an_op(std::uint64_t tag) { return tag != kWakeTag && tag != LIBURING_UDATA_TIMEOUT; }

}  // namespace

UringRing* UringRing::current() { return current_ring; }

Status UringRing::make_ring(const Options& options) {
  const auto entries = static_cast<unsigned>(queue_depth_) + 1;  // one for the wake-up
  SLUICE_RETURN_IF_ERROR(set_up_ring(ring_, entries));
  io_uring_register_ring_fd(&ring_);  // saves a look-up per system call; not on older kernels
  has_file_slots_ =
      options.file_slots > 0 && io_uring_register_files_sparse(&ring_, options.file_slots) == 0;
  has_memory_slots_ = options.memory_slots > 0 &&
                      io_uring_register_buffers_sparse(&ring_, options.memory_slots) == 0;
  return {};
}

Status UringRing::start(const Options& options, const Clock& clock) {
  clock_ = &clock;
  owner_ = options.owner;
  queue_depth_ = options.queue_depth;
  hand_over_ = options.single_submit ? 1 : kHandOver;
  wake_descriptor_ = ::eventfd(0, EFD_CLOEXEC);
  if (wake_descriptor_ < 0)
    return Error::from_errno(errno, {.operation = "creation of an eventfd"});

  std::promise<Status> made;
  const SignalsBlocked signals_blocked;
  try {
    thread_ = std::thread([this, &options, &made] {
      name_this_thread("sluice-uring");
      current_ring = this;
      Status status = make_ring(options);
      const bool runs = status.ok();
      made.set_value(std::move(status));
      if (runs) {
        run();
        io_uring_queue_exit(&ring_);  // here: its descriptor is registered with this thread
      }
    });
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOutOfMemory, std::string("could not start an IO thread (") +
                                              error.what() + "): raise ulimit -u");
  }
  Status status = made.get_future().get();
  if (!status.ok()) thread_.join();
  return status;
}

UringRing::~UringRing() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      inbox_filled_ = true;
    }
    wake();
    thread_.join();
  }
  if (wake_descriptor_ >= 0) ::close(wake_descriptor_);
}

void UringRing::wake() {
  if (given_up_.load()) {
    inbox_changed_.notify_one();
    return;
  }
  // Sequentially consistent on both sides: either this thread sees the ring asleep, or the ring
  // sees the inbox filled before it sleeps (enter).
  if (!asleep_.load()) return;
  const std::uint64_t one = 1;
  while (::write(wake_descriptor_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void UringRing::submit(std::span<IoOp* const> ops) noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (IoOp* op : ops) inbox_.push_back(op);
    inbox_filled_ = true;
  }
  wake();
}

void UringRing::submit_here(std::span<IoOp* const> ops) noexcept {
  for (IoOp* op : ops) ready_.push_back(op);
}

int UringRing::run_on_thread(const std::function<int()>& task) {
  std::promise<int> done;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([&] { done.set_value(task()); });
    inbox_filled_ = true;
  }
  wake();
  return done.get_future().get();
}

int UringRing::set_file(unsigned slot, int descriptor) {
  return run_on_thread([&] {
    const int result = io_uring_register_files_update(&ring_, slot, &descriptor, 1);
    return result < 0 ? result : 0;
  });
}

int UringRing::set_memory(unsigned slot, std::span<std::byte> memory) {
  return run_on_thread([&] {
    const iovec piece{memory.data(), memory.size()};
    const __u64 tag = 0;
    const int result = io_uring_register_buffers_update_tag(&ring_, slot, &piece, &tag, 1);
    if (result < 0) return result;
    const Region region{memory.data(), memory.data() + memory.size(), slot};
    const auto place =
        std::lower_bound(regions_.begin(), regions_.end(), region,
                         [](const Region& a, const Region& b) { return a.begin < b.begin; });
    regions_.insert(place, region);
    return 0;
  });
}

void UringRing::clear_memory(unsigned slot) {
  run_on_thread([&] {
    const auto stale = [&](const Region& region) { return region.slot == slot; };
    regions_.erase(std::remove_if(regions_.begin(), regions_.end(), stale), regions_.end());
    const iovec nothing{nullptr, 0};
    const __u64 tag = 0;
    return io_uring_register_buffers_update_tag(&ring_, slot, &nothing, &tag, 1);
  });
}

void UringRing::take_inbox() {
  if (!inbox_filled_.load(std::memory_order_relaxed)) return;
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    inbox_filled_ = false;
    ready_.append(inbox_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

int UringRing::find_memory(const IoOp& op) const {
  // The last region that begins at or before the data; it must contain all of it.
  auto after = std::upper_bound(
      regions_.begin(), regions_.end(), op.data,
      [](const std::byte* data, const Region& region) { return data < region.begin; });
  if (after == regions_.begin()) return -1;
  const Region& region = *--after;
  return op.data + op.length_bytes <= region.end ? static_cast<int>(region.slot) : -1;
}

void UringRing::prepare(io_uring_sqe& sqe, const IoOp& op) {
  const bool fixed_file =
      op.file != nullptr && op.file->backend_slot >= 0 && op.file->attached_to == owner_;
  const int file = op.file == nullptr ? -1
                   : fixed_file       ? op.file->backend_slot
                                      : op.file->descriptor();
  switch (op.kind) {
    case IoKind::kRead:
      if (const int slot = find_memory(op); slot >= 0) {
        io_uring_prep_read_fixed(&sqe, file, op.data, op.length_bytes, op.offset_bytes, slot);
      } else {
        io_uring_prep_read(&sqe, file, op.data, op.length_bytes, op.offset_bytes);
      }
      break;
    case IoKind::kWrite:
      if (const int slot = find_memory(op); slot >= 0) {
        io_uring_prep_write_fixed(&sqe, file, op.data, op.length_bytes, op.offset_bytes, slot);
      } else {
        io_uring_prep_write(&sqe, file, op.data, op.length_bytes, op.offset_bytes);
      }
      break;
    case IoKind::kSync:
      io_uring_prep_fsync(&sqe, file, IORING_FSYNC_DATASYNC);
      break;
    case IoKind::kNop:
      io_uring_prep_nop(&sqe);
      break;
  }
  if (fixed_file && op.kind != IoKind::kNop) sqe.flags |= IOSQE_FIXED_FILE;
}

void UringRing::start_delayed() {
  if (delayed_.empty()) return;
  const std::int64_t now_ns = clock_->now_ns();
  while (!delayed_.empty() && delayed_.front()->delay_ns <= now_ns) {
    std::pop_heap(delayed_.begin(), delayed_.end(), starts_later);
    delayed_.back()->delay_ns = 0;
    ready_.push_back(delayed_.back());
    delayed_.pop_back();
  }
}

// A batch is one system call, except that a long one is submitted in parts: the drive starts on the
// first part while the rest is still being prepared.
void UringRing::start_ops() {
  start_delayed();
  int prepared = 0;
  while (!ready_.empty() && in_kernel_ < queue_depth_) {
    if (ready_.first->delay_ns > 0) {
      IoOp* op = ready_.pop_front();
      op->delay_ns += clock_->now_ns();
      delayed_.push_back(op);
      std::push_heap(delayed_.begin(), delayed_.end(), starts_later);
      continue;
    }
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // full: prepared entries go to the kernel first
    IoOp* op = ready_.pop_front();
    prepare(*sqe, *op);
    io_uring_sqe_set_data(sqe, op);
    ++in_kernel_;
    // The result may be ignored: entries that the kernel does not take here stay in the ring.
    // enter(), which always follows, submits them again and checks the result.
    if (++prepared % hand_over_ == 0) io_uring_submit(&ring_);
  }
}

void UringRing::arm_wake() {
  if (wake_armed_) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;  // armed again after the next submit
  io_uring_prep_read(sqe, wake_descriptor_, &wake_count_, sizeof wake_count_, 0);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  wake_armed_ = true;
}

// One system call: submits the prepared entries and, unless there is work to do, waits for a
// completion.
void UringRing::enter() {
  asleep_.store(true);
  const bool work_waits = inbox_filled_.load() || (!ready_.empty() && in_kernel_ < queue_depth_);
  const bool timed = !delayed_.empty() && !work_waits;
  const std::int64_t entered_ns = clock_->now_ns();
  int result = 0;
  if (timed) {
    const std::int64_t wait_ns = std::max<std::int64_t>(0, delayed_.front()->delay_ns - entered_ns);
    __kernel_timespec timeout{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    io_uring_cqe* first = nullptr;
    result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &timeout, nullptr);
    if (result == -ETIME) result = 1;
  } else {
    result = io_uring_submit_and_wait(&ring_, work_waits ? 0 : 1);
  }
  asleep_.store(false);
  const bool waited = !timed && !work_waits;
  judge_enter(result, entered_ns, waited && result == 0 && io_uring_cq_ready(&ring_) == 0);
}

// A failure loses nothing: entries that were not accepted stay in the ring for the next call.
void UringRing::judge_enter(int result, std::int64_t entered_ns, bool did_nothing) {
  const int error_number = std::max(0, -result);
  const std::int64_t now_ns = clock_->now_ns();
  const bool went_well = result >= 0 && !did_nothing;
  if (went_well || is_interruption(error_number, now_ns - entered_ns)) {
    enter_failures_ = 0;
    return;
  }
  if (now_ns - last_failure_ns_ > kUnrelatedNs) enter_failures_ = 0;
  last_failure_ns_ = now_ns;
  const auto delay_ns = enter_retry_delay_ns(error_number, enter_failures_++, kMaxEnterTries);
  if (!delay_ns) {
    give_up(error_number);
    return;
  }
  if (error_number != EINTR) {
    log::warning_once("uring-enter" + std::to_string(error_number),
                      enter_refused(error_number).message() + " (retrying for some seconds)");
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(*delay_ns));
}

// The entries after the kernel's head belong to the program: the kernel reads them only in
// io_uring_enter, which is not called again.
void UringRing::give_up(int error_number) {
  log::error(enter_refused(error_number).message() +
             ". Operations that the kernel has not accepted now fail");
  for (unsigned i = *ring_.sq.khead; i != ring_.sq.sqe_tail; ++i) {
    const std::uint64_t tag = ring_.sq.sqes[i & ring_.sq.ring_mask].user_data;
    if (!is_an_op(tag)) continue;
    ready_.push_back(reinterpret_cast<IoOp*>(tag));  // NOLINT(performance-no-int-to-ptr)
    --in_kernel_;
  }
  const std::lock_guard lock(mutex_);
  given_up_ = true;
}

void UringRing::fail_waiting() {
  for (IoOp* op : delayed_) ready_.push_back(op);
  delayed_.clear();
  while (!ready_.empty()) {
    IoOp* op = ready_.pop_front();
    op->on_done(*op, -ENOTRECOVERABLE);
  }
}

void UringRing::wait_without_entering() {
  std::unique_lock lock(mutex_);
  const auto filled = [this] { return inbox_filled_.load(); };
  if (in_kernel_ > 0) {
    inbox_changed_.wait_for(lock, kLookAgain, filled);
  } else {
    inbox_changed_.wait(lock, filled);
  }
}

// Takes results out before any callback runs, so that callbacks find room in the ring.
void UringRing::reap() {
  struct Done {
    IoOp* op;
    std::int32_t result;
  };
  std::array<Done, kReapBatch> done;
  std::array<io_uring_cqe*, kReapBatch> completions;
  while (true) {
    const unsigned count = io_uring_peek_batch_cqe(&ring_, completions.data(), kReapBatch);
    std::size_t ended = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (completions[i]->user_data == kWakeTag) {
        wake_armed_ = false;
      } else if (is_an_op(completions[i]->user_data)) {
        done[ended++] = {static_cast<IoOp*>(io_uring_cqe_get_data(completions[i])),
                         completions[i]->res};
      }
    }
    io_uring_cq_advance(&ring_, count);
    in_kernel_ -= static_cast<int>(ended);
    if (count > 0) enter_failures_ = 0;
    for (std::size_t i = 0; i < ended; ++i) done[i].op->on_done(*done[i].op, done[i].result);
    if (count < kReapBatch) return;
  }
}

void UringRing::run() {
  while (true) {
    take_inbox();
    if (given_up_) {
      fail_waiting();
    } else {
      arm_wake();
      start_ops();
    }
    if (ready_.empty() && delayed_.empty() && in_kernel_ == 0) {
      const std::lock_guard lock(mutex_);
      if (stopping_ && inbox_.empty() && tasks_.empty()) return;
    }
    if (given_up_) {
      wait_without_entering();
    } else {
      enter();
    }
    reap();
  }
}

}  // namespace sluice::aio
