#include "swap/swap_pipeline.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/units.h"
#include "swap/record_work.h"

namespace sluice::swap {
namespace {

constexpr std::size_t kStartBatch = 16;

using State = SwapSchedule::State;

int burst_records(const SwapPipeline::Options& options) {
  if (options.order == SwapPipeline::Order::kMixed) return 0;
  return options.burst_records > 0 ? options.burst_records : std::max(1, options.buffers / 2);
}

Status validate(const SwapPipeline::Options& options) {
  if (options.buffers < 2 || options.buffers > SwapPipeline::kMaxBuffers) {
    return Error(ErrorCode::kInvalidArgument,
                 "the swap pipeline cannot have " + std::to_string(options.buffers) +
                     " buffers: it must be 2 to " + std::to_string(SwapPipeline::kMaxBuffers));
  }
  if (options.burst_records < 0 || options.burst_records > options.buffers) {
    return Error(ErrorCode::kInvalidArgument,
                 "bursts of " + std::to_string(options.burst_records) +
                     " records make no sense with " + std::to_string(options.buffers) +
                     " buffers: it must be 0 (half of the buffers) to the number of buffers");
  }
  return {};
}

}  // namespace

// All fields but the first two belong to the starting thread until the transfer is submitted, and
// to the loan while the record is on loan.
struct SwapPipeline::Slot {
  SwapPipeline* pipeline = nullptr;
  int index = 0;
  aio::PinnedPool::Lease lease;
  RecordIo io;
  std::optional<RecordImage> image;
  std::optional<std::uint64_t> check;
  std::uint64_t next_generation = 0;
};

// ---- loans -----------------------------------------------------------------------------------

SwapPipeline::Loan::Loan(Loan&& other) noexcept
    : pipeline_(std::exchange(other.pipeline_, nullptr)),
      slot_(std::exchange(other.slot_, nullptr)) {}

SwapPipeline::Loan& SwapPipeline::Loan::operator=(Loan&& other) noexcept {
  if (this != &other) {
    if (pipeline_ != nullptr) pipeline_->give_back(*slot_, false);
    pipeline_ = std::exchange(other.pipeline_, nullptr);
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

SwapPipeline::Loan::~Loan() {
  if (pipeline_ != nullptr) pipeline_->give_back(*slot_, false);
}

RecordId SwapPipeline::Loan::record() const {
  return static_cast<RecordId>(slot_->image->shape().record);
}
RecordImage& SwapPipeline::Loan::image() const { return *slot_->image; }
std::optional<std::uint64_t> SwapPipeline::Loan::check_generation() const { return slot_->check; }
std::uint64_t SwapPipeline::Loan::next_generation() const { return slot_->next_generation; }

Status SwapPipeline::Loan::work(aio::Executor& executor,
                                const std::function<void(int chunk, std::span<std::byte>)>& work) {
  Status done =
      work_on_record(executor, *slot_->image,
                     {.check = slot_->check, .seal = slot_->next_generation, .work = work});
  if (!done.ok())
    return std::move(done).error().with_context("record " + pipeline_->store_.name(record()));
  slot_->check.reset();
  return {};
}

Status SwapPipeline::Loan::check(aio::Executor& executor) {
  if (!slot_->check) return {};
  Status done = work_on_record(executor, *slot_->image, {.check = slot_->check});
  if (!done.ok())
    return std::move(done).error().with_context("record " + pipeline_->store_.name(record()));
  slot_->check.reset();
  return {};
}

// ---- construction and destruction ------------------------------------------------------------

SwapPipeline::SwapPipeline(StateStore& store, const Options& options)
    : store_(store),
      options_(options),
      slots_(std::make_unique<Slot[]>(  // NOLINT(modernize-avoid-c-arrays)
          static_cast<std::size_t>(options.buffers))),
      schedule_({.buffers = options.buffers,
                 .records = store.record_count(),
                 .burst_records = burst_records(options)}),
      activity_since_ns_(store.clock().now_ns()) {}

Result<std::unique_ptr<SwapPipeline>> SwapPipeline::create(StateStore& store, aio::PinnedPool& pool,
                                                           const Options& options) {
  SLUICE_RETURN_IF_ERROR(validate(options));
  const std::uint64_t needed_bytes = store.layout().largest_image_bytes();
  if (pool.buffer_bytes() < needed_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 "the pool's buffers of " + std::to_string(pool.buffer_bytes()) +
                     " bytes are too small for the store's records: the largest needs " +
                     std::to_string(needed_bytes));
  }
  std::vector<aio::PinnedPool::Lease> leases(static_cast<std::size_t>(options.buffers));
  if (pool.capacity() < options.buffers || !pool.try_acquire_all(leases)) {
    return Error(ErrorCode::kOutOfMemory,
                 "the swap pipeline needs " + std::to_string(options.buffers) +
                     " pinned buffers, and the pool has " + std::to_string(pool.free_count()) +
                     " free ones: make the pool larger, or use fewer buffers");
  }
  std::unique_ptr<SwapPipeline> pipeline(new SwapPipeline(store, options));
  for (int i = 0; i < options.buffers; ++i) {
    Slot& slot = pipeline->slots_[static_cast<std::size_t>(i)];
    slot.pipeline = pipeline.get();
    slot.index = i;
    slot.lease = std::move(leases[static_cast<std::size_t>(i)]);
    slot.io.set_callback(&SwapPipeline::on_done, &slot);
  }
  return pipeline;
}

SwapPipeline::~SwapPipeline() {
  cancel();
  Lock lock(mutex_);
  SLUICE_CHECK(schedule_.on_loan() == 0, "a SwapPipeline was destroyed while a record was on loan");
  static_cast<void>(wait(lock, [] { return false; }));
}

// ---- transfers -------------------------------------------------------------------------------

// Releases the lock while it passes to the store the transfers that the schedule starts.
void SwapPipeline::start_transfers(Lock& lock) {
  std::array<SwapSchedule::Transfer, kStartBatch> batch;
  for (;;) {
    std::size_t count = 0;
    while (count < batch.size()) {
      const auto transfer = schedule_.start_next();
      if (!transfer) break;
      batch[count++] = *transfer;
    }
    if (count == 0) return;
    ++starting_;
    lock.unlock();
    for (std::size_t i = 0; i < count; ++i) start(batch[i]);
    lock.lock();
    --starting_;
  }
}

void SwapPipeline::start(const SwapSchedule::Transfer& transfer) {
  Slot& slot = slots_[static_cast<std::size_t>(transfer.buffer)];
  if (transfer.is_write) {
    store_.write(slot.io, transfer.record, slot.next_generation, slot.image->bytes());
    return;
  }
  const RecordShape& shape = store_.shape(transfer.record);
  slot.image.emplace(shape, slot.lease.bytes().first(shape.image_bytes()));
  slot.check = store_.generation(transfer.record);
  SLUICE_CHECK(slot.check, "only a record that was written can be expected");
  slot.next_generation = store_.next_generation(transfer.record);
  store_.read(slot.io, transfer.record, slot.image->bytes());
}

// From here on, once the lock is released for the last time, everything but the store may be
// destroyed.
void SwapPipeline::on_done(RecordIo& io, void* context) noexcept {
  const auto& slot = *static_cast<const Slot*>(context);
  SwapPipeline& pipeline = *slot.pipeline;
  const std::uint64_t bytes = slot.image->bytes().size();
  Lock lock(pipeline.mutex_);
  const bool wrote = pipeline.schedule_.state(slot.index) == State::kWriting;
  if (io.status().ok()) {
    (wrote ? pipeline.stats_.records_written : pipeline.stats_.records_read) += 1;
    (wrote ? pipeline.stats_.bytes_written : pipeline.stats_.bytes_read) += bytes;
  } else {
    pipeline.stop_locked(io.status().error());
  }
  pipeline.schedule_.ended(slot.index);
  pipeline.changed_.notify_all();  // before more transfers start: another thread can compute
  pipeline.start_transfers(lock);
  pipeline.changed_.notify_all();
}

// The store's cancel() calls no callback, so the lock can stay held.
void SwapPipeline::stop_locked(Error error) {
  if (!failure_.ok()) return;
  failure_ = std::move(error);
  schedule_.stop();
  for (int i = 0; i < options_.buffers; ++i) {
    if (schedule_.state(i) == State::kReading)
      store_.cancel(slots_[static_cast<std::size_t>(i)].io);
  }
}

void SwapPipeline::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  stop_locked(Error(ErrorCode::kCancelled, "the swap pipeline was cancelled"));
  changed_.notify_all();
}

// ---- the caller's side -----------------------------------------------------------------------

void SwapPipeline::expect(std::span<const RecordId> records) {
  Lock lock(mutex_);
  schedule_.expect(records);
  start_transfers(lock);
}

std::size_t SwapPipeline::expected() const {
  const std::lock_guard lock(mutex_);
  return schedule_.expected();
}

Result<SwapPipeline::Loan> SwapPipeline::next() {
  Lock lock(mutex_);
  SLUICE_CHECK(schedule_.expected() > 0, "next() without an expected record");
  SLUICE_CHECK(schedule_.on_loan() < options_.buffers, "next() while every buffer is on loan");
  SLUICE_CHECK(schedule_.due_state() != State::kOnLoan, "next() of a record that is on loan");
  SLUICE_RETURN_IF_ERROR(wait(lock, [&] { return schedule_.due_state() == State::kReady; }));
  const SwapSchedule::Given given = schedule_.give_due();
  account_locked();
  Slot& slot = slots_[static_cast<std::size_t>(given.buffer)];
  if (given.forwarded) {
    ++stats_.records_forwarded;
    slot.check.reset();
    ++slot.next_generation;
  }
  return Loan(this, &slot);
}

void SwapPipeline::write(Loan loan) {
  SLUICE_CHECK(loan.pipeline_ == this, "write() of a record that is on loan");
  Slot& slot = *loan.slot_;
  SLUICE_CHECK(slot.image->check_header(slot.next_generation).ok(),
               "write() of a record that is not sealed with its next generation");
  loan.pipeline_ = nullptr;
  give_back(slot, true);
}

void SwapPipeline::release(Loan loan) { const Loan ended = std::move(loan); }

void SwapPipeline::give_back(Slot& slot, bool write) {
  Lock lock(mutex_);
  if (write) {
    schedule_.write(slot.index);
  } else {
    schedule_.drop(slot.index);
  }
  account_locked();
  start_transfers(lock);
}

Status SwapPipeline::drain() {
  Lock lock(mutex_);
  draining_ = true;
  Status drained = wait(lock, [&] { return schedule_.unwritten() == 0; });
  draining_ = false;
  return drained;
}

bool SwapPipeline::quiet_locked() const {
  return schedule_.reading() == 0 && schedule_.writing() == 0 && starting_ == 0;
}

template <typename Done>
Status SwapPipeline::wait(Lock& lock, const Done& done) {
  const auto over = [&] { return failure_.ok() ? done() : quiet_locked(); };
  waiting_ = true;
  while (!over()) {
    account_locked();
    lock.unlock();
    const aio::PumpResult pumped = store_.pump();
    lock.lock();
    if (over()) break;
    SLUICE_CHECK(pumped != aio::PumpResult::kIdle,
                 "virtual time ran out of events while a record was waited for: a deadlock");
    if (pumped == aio::PumpResult::kThreaded) changed_.wait(lock);
  }
  waiting_ = false;
  account_locked();
  return failure_;
}

// ---- statistics ------------------------------------------------------------------------------

SwapPipeline::Activity SwapPipeline::activity_locked() const {
  if (!waiting_) return schedule_.on_loan() > 0 ? Activity::kCompute : Activity::kNone;
  if (draining_) return Activity::kWaitForWrite;
  const State due = schedule_.due_state();
  const bool turn_of_writes = due == State::kToRead && schedule_.writing() > 0;
  const bool reads = due == State::kReading || (due == State::kToRead && !turn_of_writes);
  return reads ? Activity::kWaitForRead : Activity::kWaitForWrite;
}

SwapStats SwapPipeline::stats_at_locked(std::int64_t now_ns) const {
  SwapStats stats = stats_;
  const std::int64_t passed_ns = now_ns - activity_since_ns_;
  switch (activity_) {
    case Activity::kNone:
      break;
    case Activity::kWaitForRead:
      stats.wait_read_ns += passed_ns;
      break;
    case Activity::kCompute:
      stats.compute_ns += passed_ns;
      break;
    case Activity::kWaitForWrite:
      stats.wait_write_ns += passed_ns;
      break;
  }
  return stats;
}

// Adds the time since the last call to the activity during it.
void SwapPipeline::account_locked() {
  const std::int64_t now_ns = store_.clock().now_ns();
  stats_ = stats_at_locked(now_ns);
  activity_ = activity_locked();
  activity_since_ns_ = now_ns;
}

SwapStats SwapPipeline::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_at_locked(store_.clock().now_ns());
}

}  // namespace sluice::swap
