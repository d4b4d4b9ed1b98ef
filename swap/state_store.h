// StateStore: the optimizer state of one rank on NVMe, as records at fixed places over one or more
// paths. The idea comes from DeepSpeed's swapped optimizer state (Rajbhandari et al.,
// "ZeRO-Infinity", SC 2021, section 5.2); FORMAT.md has the bytes on disk.
//
// A record is read and written whole, by one contiguous request. Each write gives it a new
// generation; the store remembers which generation each record has, so that a read can prove that
// it got that one and not an older one. All space is taken in create(). Reads and writes use
// separate queues, so that a long write does not hold up the reads behind it (they may be the same
// queue).
//
// Life: a store is scratch. Records are overwritten in place, so that after a kill nothing in it
// can be trusted as a whole: it is never opened again, but removed or made anew. What lasts of a
// run are its checkpoints. See store_inventory.h for what else may lie on a path.
//
// Memory:  less than 200 bytes a record; the caller owns every buffer.
// Threads: all methods from any thread, but create() and remove() alone.
//          A RecordIo's callback runs on a thread of the backend.
// Order:   no read of a record while a write of it is in flight, and no two writes (checked):
//          whoever needs the data then finds it in the write's buffer.
// Errors:  as from IoQueue, after the record's name; kCorrupt for a store that is damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "aio/striped_file.h"
#include "swap/record_image.h"
#include "swap/store_directory.h"
#include "swap/store_layout.h"

namespace sluice::swap {

class StateStore;

// One read or write of a record in flight. Owned by the caller, reused at will, neither copied nor
// moved; it must outlive its end.
class RecordIo {
 public:
  // Runs once when the transfer has ended, on a thread of the backend: never block there. The
  // RecordIo is free to be reused by then.
  using Callback = void (*)(RecordIo& io, void* context) noexcept;

  RecordIo() = default;
  RecordIo(const RecordIo&) = delete;
  RecordIo& operator=(const RecordIo&) = delete;

  void set_callback(Callback callback, void* context) {
    callback_ = callback;
    context_ = context;
  }
  // How it ended; an error begins with the record's name. Meaningful from the callback on.
  const Status& status() const { return status_; }

 private:
  friend class StateStore;
  aio::IoRequest request_;
  StateStore* store_ = nullptr;
  RecordId record_ = 0;
  aio::IoQueue* queue_ = nullptr;  // guarded by the store's mutex_
  Callback callback_ = nullptr;
  void* context_ = nullptr;
  Status status_;
};

class StateStore {
 public:
  struct Options {
    std::vector<std::string> paths;  // one folder per drive; they must exist
    std::vector<int> weights;        // of the paths, by speed; empty: equal
    std::string run;                 // the store's folder on each path is sluice-<run>
    std::uint64_t stripe_bytes = 1 << 20;
    std::uint64_t chunk_bytes = 1 << 20;  // of a checksum
    std::uint64_t store_id = 0;           // 0: random
    const char* label = "records";        // of its requests, for observers of the queues
  };
  struct Queues {
    aio::IoQueue& reads;
    aio::IoQueue& writes;
  };

  // Makes a new store; what a killed run of the same name left is removed, which is logged. No
  // record can be read before it was written. kBusy: a run of this name is alive, or may be
  // elsewhere. Other errors: a store that cannot be read, or of which a part is missing. What is
  // refused is left as it was. kNoSpace before anything is written. Whatever fails, nothing is left
  // behind.
  static Result<std::unique_ptr<StateStore>> create(Queues queues, const Options& options,
                                                    std::vector<RecordSpec> records);

  // Leaves the files as they are, which count as left by a killed run.
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Removes its files from every path. No IO may be in flight, and none may follow.
  Status remove();

  const StoreLayout& layout() const { return layout_; }
  std::size_t record_count() const { return layout_.records().size(); }
  std::string name(RecordId id) const { return name_of(layout_.record(id)); }
  const RecordShape& shape(RecordId id) const { return shapes_[id]; }
  // The generation that a read gets; nothing before the first write, or once a write failed.
  std::optional<std::uint64_t> generation(RecordId id) const;

  // Start a transfer of the whole image, of shape(id).image_bytes(). A read is not yet checked: see
  // record_work.h. The image to be written has been sealed with `generation`, which is larger than
  // that of any write before.
  void read(RecordIo& io, RecordId id, std::span<std::byte> image) noexcept;
  void write(RecordIo& io, RecordId id, std::uint64_t generation,
             std::span<const std::byte> image) noexcept;
  // Starts no further block of it; it still ends, with kCancelled or as it would have anyway.
  void cancel(RecordIo& io) noexcept;

  // Blocking: reads and checks.
  Status read_checked(aio::Executor& executor, RecordId id, std::span<std::byte> image);

  // For callers that wait themselves: a backend in virtual time works here.
  aio::PumpResult pump() { return queues_.reads.backend().pump(); }
  const Clock& clock() const { return queues_.reads.backend().clock(); }

 private:
  struct RecordState {
    std::uint64_t generation = 0;  // the newest whose write has begun
    bool valid = false;            // and is on the disk
    bool writing = false;
    std::uint16_t readers = 0;
  };

  StateStore(Queues queues, StoreLayout layout, StoreDirectories directories);
  Status make_data();
  Status read_and_wait(RecordId id, std::span<std::byte> image);
  static void on_done(aio::IoRequest& request, void* context) noexcept;

  const Queues queues_;
  const StoreLayout layout_;
  const std::vector<RecordShape> shapes_;
  StoreDirectories directories_;  // in the layout's order
  std::unique_ptr<aio::StripedFile> data_;
  const char* label_ = Options().label;

  mutable std::mutex mutex_;
  std::vector<RecordState> states_;  // guarded by mutex_
  std::uint64_t in_flight_ = 0;      // guarded by mutex_
};

}  // namespace sluice::swap
