// StateStore: the optimizer state of one rank on NVMe, as records at fixed places on one or more
// paths. The idea comes from DeepSpeed's swapped optimizer state (Rajbhandari et al.,
// "ZeRO-Infinity", SC 2021, section 5.2); FORMAT.md specifies the bytes on disk.
//
// A record is read and written whole, by one contiguous request. Each write gives it a new
// generation. The store remembers the generation of each record, so that a read can prove that it
// returned that one and not an older one. All space is allocated in create(). Reads and writes use
// separate queues, so that a long write does not delay the reads queued after it (the queues may be
// the same).
//
// Lifetime: a store is scratch. Records are overwritten in place, so after a kill its contents
//           cannot be trusted as a whole, and it is removed or created anew. A run's lasting data
//           is in its checkpoints. With two places for each record one generation can be frozen
//           (frozen_store.h). It is never overwritten before a newer one replaces it, and open()
//           continues from it. store_inventory.h describes what else may be on a path.
//
// Memory:  less than 200 bytes a record; the caller owns every buffer.
// Threads: all methods from any thread, except that create() and remove() run alone. A RecordIo's
//          callback runs on a thread of the backend.
// Order:   no read of a record while a write of it is in flight, and no two writes (checked): the
//          write's buffer already has the data.
// Errors:  those of IoQueue, after the record's name; kCorrupt for a store that is damaged.
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
#include "swap/frozen_store.h"
#include "swap/record_image.h"
#include "swap/store_directory.h"
#include "swap/store_layout.h"

namespace sluice::swap {

class StateStore;

// One read or write of a record in flight. Owned by the caller, reusable, neither copied nor moved;
// it must live until the transfer has ended.
class RecordIo {
 public:
  // Runs once when the transfer has ended, on a thread of the backend: it must never block. The
  // RecordIo may be reused by then.
  using Callback = void (*)(RecordIo& io, void* context) noexcept;

  RecordIo() = default;
  RecordIo(const RecordIo&) = delete;
  RecordIo& operator=(const RecordIo&) = delete;

  void set_callback(Callback callback, void* context) {
    callback_ = callback;
    context_ = context;
  }
  // The result of the transfer; an error begins with the record's name. Valid from the callback on.
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
    std::vector<int> weights;        // one per path, proportional to speed; empty: equal
    std::string run;                 // the store's folder on each path is sluice-<run>
    std::uint64_t stripe_bytes = 1 << 20;
    std::uint64_t chunk_bytes = 1 << 20;  // one checksum's bytes
    int places = 1;                       // of each record; 2: freeze() works
    std::uint64_t store_id = 0;           // 0: random
    const char* label = "records";        // names its requests for observers of the queues
  };
  struct Queues {
    aio::IoQueue& reads;
    aio::IoQueue& writes;
  };

  // Creates a new store; files that a killed run of the same name left are removed, and this is
  // logged. No record can be read before it was written. kBusy: a run of this name is alive, or may
  // be alive elsewhere. Other errors: an old store that cannot be read, or that has a missing part.
  // A refused store is left unchanged. kNoSpace is returned before anything is written. If creation
  // fails, no new files remain.
  static Result<std::unique_ptr<StateStore>> create(Queues queues, const Options& options,
                                                    std::vector<RecordSpec> records);

  // Continues in a store whose run has ended, from its frozen generation: every record is valid.
  // `records`: those that create() would get. kInvalidArgument: the store has others. Errors of
  // FrozenRecords::open(), and kBusy as for create(). An error leaves the store as it is.
  static Result<std::unique_ptr<StateStore>> open(Queues queues, const FrozenStore& frozen,
                                                  std::span<const RecordSpec> records,
                                                  const char* label);

  // Leaves the files unchanged; they count as left by a killed run.
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Removes the store's files from every path. No IO may be in flight or follow.
  Status remove();

  const StoreLayout& layout() const { return layout_; }
  std::size_t record_count() const { return layout_.records().size(); }
  std::string name(RecordId id) const { return name_of(layout_.record(id)); }
  const RecordShape& shape(RecordId id) const { return shapes_[id]; }
  // The generation that a read returns; empty before the first write, or after a failed write.
  std::optional<std::uint64_t> generation(RecordId id) const;
  // For the next write: larger than all that this or a killed process may have written.
  std::uint64_t next_generation(RecordId id) const;

  // ---- two places
  // Makes the newest generation of all records durable, and returns it. Every record must be valid,
  // and no write in flight (checked). Until keep_frozen() or drop_frozen() nothing may be written
  // (checked). `checkpoint`: the folder of the manifest that will name it. After an error, only
  // records that were written anew can be made durable.
  Result<FrozenStore> freeze(const std::string& checkpoint);
  // The manifest is durable: what was frozen before may be overwritten.
  Status keep_frozen();
  // It will not be named: what was frozen before stays.
  Status drop_frozen();
  bool has_frozen() const;
  // Whether freeze() was called, and nothing may be written yet.
  bool is_naming() const;

  // Start a transfer of the whole image, shape(id).image_bytes() bytes. A read is not checked yet:
  // see record_work.h. An image to write must be sealed with `generation`, which is larger than
  // those of all earlier writes.
  void read(RecordIo& io, RecordId id, std::span<std::byte> image) noexcept;
  void write(RecordIo& io, RecordId id, std::uint64_t generation,
             std::span<const std::byte> image) noexcept;
  // Starts no more blocks of the transfer; it still ends, with kCancelled or with its normal
  // result.
  void cancel(RecordIo& io) noexcept;

  // Reads and checks the record; blocking.
  Status read_checked(aio::Executor& executor, RecordId id, std::span<std::byte> image);

  // For callers that wait themselves; also works with a backend in virtual time.
  aio::PumpResult pump() { return queues_.reads.backend().pump(); }
  const Clock& clock() const { return queues_.reads.backend().clock(); }

 private:
  struct RecordState {
    std::uint64_t generation = 0;  // the newest one whose write has begun
    bool valid = false;            // whether that generation is on disk
    bool writing = false;
    bool suspect = false;  // a sync after its write has failed: it may be lost, and no later sync
                           // would say so
    std::uint16_t readers = 0;
  };

  StateStore(Queues queues, StoreLayout layout, StoreDirectories directories);
  Status open_data(aio::OpenOptions::Create create);
  Status mark(const FrozenMark& mark);
  Status remove_mark();
  Status read_and_wait(RecordId id, std::span<std::byte> image);
  static void on_done(aio::IoRequest& request, void* context) noexcept;

  const Queues queues_;
  const StoreLayout layout_;
  const std::vector<RecordShape> shapes_;
  StoreDirectories directories_;  // in the layout's order
  std::unique_ptr<aio::StripedFile> data_;
  const char* label_ = Options().label;

  std::uint64_t first_generation_ = 1;  // of this process
  std::optional<FrozenMark> mark_;      // on the paths

  mutable std::mutex mutex_;
  std::vector<RecordState> states_;  // guarded by mutex_
  RecordPlaces places_;              // guarded by mutex_
  std::uint64_t in_flight_ = 0;      // guarded by mutex_
};

}  // namespace sluice::swap
