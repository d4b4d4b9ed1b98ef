// RecordWriter: writes records without reading them first, when a store is filled: while the drive
// writes one record, the caller makes the next.
//
//   SLUICE_ASSIGN_OR_RETURN(auto payload, writer->begin(record));
//   fill(payload);
//   SLUICE_RETURN_IF_ERROR(writer->write(executor));
//   ...
//   SLUICE_RETURN_IF_ERROR(writer->finish());
//
// Memory:  `buffers` leases of the pool, taken in create() and returned by the destructor.
// Threads: one.
// Errors:  the first failed write ends it; the error begins with the record's name.
// Shutdown: the destructor waits for writes in flight.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aio/executor.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "swap/state_store.h"

namespace sluice::swap {

class RecordWriter {
 public:
  // kOutOfMemory if the pool has fewer than `buffers` free buffers now. Its buffers must hold every
  // record that is written (checked). Store and pool must outlive the writer.
  static Result<std::unique_ptr<RecordWriter>> create(StateStore& store, aio::PinnedPool& pool,
                                                      int buffers);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Waits for a free buffer. Returns the record's payload, which the caller must set completely: it
  // still holds other records' bytes.
  Result<std::span<std::byte>> begin(RecordId record);
  // Seals the payload from begin() with the record's next generation, and starts to write it.
  Status write(aio::Executor& executor);
  // Waits until every write has completed.
  Status finish();

 private:
  struct Slot {
    aio::PinnedPool::Lease lease;
    RecordIo io;
    bool in_flight = false;  // guarded by mutex_
  };

  RecordWriter(StateStore& store, int buffers)
      : store_(store), slots_(static_cast<std::size_t>(buffers)) {}
  static void on_done(RecordIo& io, void* context) noexcept;
  Status wait_for(const Slot& slot);

  StateStore& store_;
  std::vector<Slot> slots_;  // used in turn
  std::size_t next_ = 0;
  RecordId record_ = 0;  // the record in slots_[next_], between begin() and write()

  std::mutex mutex_;
  std::condition_variable ended_;  // signalled when a write ends
  Status first_error_;             // guarded by mutex_
};

}  // namespace sluice::swap
