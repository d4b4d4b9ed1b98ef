#include "swap/record_writer.h"

#include <string>
#include <utility>

#include "aio/check.h"
#include "swap/record_work.h"

namespace sluice::swap {

Result<std::unique_ptr<RecordWriter>> RecordWriter::create(StateStore& store, aio::PinnedPool& pool,
                                                           int buffers) {
  SLUICE_CHECK(buffers > 0, "a buffer at least");
  std::vector<aio::PinnedPool::Lease> leases(static_cast<std::size_t>(buffers));
  if (!pool.try_acquire_all(leases)) {
    return Error(ErrorCode::kOutOfMemory, "writing records needs " + std::to_string(buffers) +
                                              " buffers, and " + std::to_string(pool.free_count()) +
                                              " of the pool are free");
  }
  std::unique_ptr<RecordWriter> writer(new RecordWriter(store, buffers));
  for (std::size_t i = 0; i < leases.size(); ++i) {
    Slot& slot = writer->slots_[i];
    slot.lease = std::move(leases[i]);
    slot.io.set_callback(&RecordWriter::on_done, writer.get());
  }
  return writer;
}

RecordWriter::~RecordWriter() {
  for (const Slot& slot : slots_) static_cast<void>(wait_for(slot));
}

void RecordWriter::on_done(RecordIo& io, void* context) noexcept {
  auto& writer = *static_cast<RecordWriter*>(context);
  const std::lock_guard lock(writer.mutex_);
  for (Slot& slot : writer.slots_)
    if (&slot.io == &io) slot.in_flight = false;
  if (writer.first_error_.ok() && !io.status().ok()) writer.first_error_ = io.status();
  writer.ended_.notify_all();  // under the lock: the waiting thread may destroy it after that
}

Status RecordWriter::wait_for(const Slot& slot) {
  std::unique_lock lock(mutex_);
  while (slot.in_flight) {
    lock.unlock();
    const aio::PumpResult pumped = store_.pump();
    lock.lock();
    SLUICE_CHECK(pumped != aio::PumpResult::kIdle || !slot.in_flight,
                 "virtual time ran out of events while a write was waited for: a deadlock");
    if (pumped == aio::PumpResult::kThreaded) ended_.wait(lock, [&] { return !slot.in_flight; });
  }
  return first_error_;
}

Result<std::span<std::byte>> RecordWriter::begin(RecordId record) {
  Slot& slot = slots_[next_];
  SLUICE_RETURN_IF_ERROR(wait_for(slot));
  record_ = record;
  const RecordShape& shape = store_.shape(record);
  SLUICE_CHECK(slot.lease.bytes().size() >= shape.image_bytes(), "a buffer that holds the record");
  return RecordImage(shape, slot.lease.bytes().first(shape.image_bytes())).payload();
}

Status RecordWriter::write(aio::Executor& executor) {
  Slot& slot = slots_[next_];
  const RecordShape& shape = store_.shape(record_);
  RecordImage image(shape, slot.lease.bytes().first(shape.image_bytes()));
  const std::uint64_t generation = store_.next_generation(record_);
  SLUICE_RETURN_IF_ERROR(work_on_record(executor, image, {.seal = generation}));
  {
    const std::lock_guard lock(mutex_);
    slot.in_flight = true;
  }
  store_.write(slot.io, record_, generation, image.bytes());
  next_ = (next_ + 1) % slots_.size();
  return {};
}

Status RecordWriter::finish() {
  for (const Slot& slot : slots_) static_cast<void>(wait_for(slot));
  const std::lock_guard lock(mutex_);
  return first_error_;
}

}  // namespace sluice::swap
