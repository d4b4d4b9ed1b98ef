// InputSpill: what units were given in forward, on NVMe until their backward wants it (activations
// on the drives, as in "ZeRO-Infinity", SC 2021, section 5.1.2). What is kept comes in pieces of
// one size, a unit's input of one micro-batch, each a record of a store of its own.
//
//   for (piece, in forward's order) {
//     fill(*spill.begin(piece));     // a free buffer; a copy by a GPU may fill it later
//     spill.write(piece);            // sealed, and written behind
//   }
//   spill.expect(pieces);            // in backward's order: reading begins
//   for (piece of pieces) { use(*spill.take(piece)); spill.release(piece); }
//
// Memory:  buffers of footprint().buffer_bytes in all, pinned, taken once in create(); what is
//          expected is a span of the caller's, which must live until all of it has been taken.
// Order:   pieces are written once, then expected and taken once in that order, and all of this
//          again. What is expected while its buffer still has it is not read.
// Waiting: begin() and take() wait for transfers. They cannot wait for ever: buffers go to writes
//          until all have begun, and then to the pieces that are expected, in their order.
// Threads: begin(), try_begin(), expect(), is_here() and take() from one; write() and release()
//          from any, such as a GPU's callbacks: they call nothing that waits.
// Errors:  the first failed transfer or damaged piece ends it; begin(), take() and drain() return
//          that error, which begins with the piece's name. create(): as StateStore's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "swap/state_store.h"

namespace sluice::offload {

class InputSpill {
 public:
  struct Options {
    std::vector<std::string> units;    // names, of those whose inputs go to the drives
    std::uint64_t pieces_of_unit = 0;  // micro-batches of a wave; piece = place of unit * this + m
    std::uint64_t piece_bytes = 0;
    int most_buffers = 64;            // of those in footprint()
    swap::StateStore::Options store;  // paths and run; chunk_bytes is set here
    bool huge_pages = true;
    aio::MemoryLock lock = aio::MemoryLock::kTry;
    aio::PinHook hook;
  };
  struct Queues {
    aio::IoQueue& reads;
    aio::IoQueue& writes;
  };
  struct Footprint {
    int buffers = 0;
    std::uint64_t buffer_bytes = 0;  // resident and pinned, of all of them
    std::uint64_t nvme_bytes = 0;
  };
  struct Stats {
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
  };

  // What create() takes for so many pieces of this size.
  static Footprint footprint(std::uint64_t pieces, std::uint64_t piece_bytes);
  // kInvalidArgument: a piece is larger than a record can be.
  static Status check(const Options& options);
  // Whatever fails, nothing is left behind.
  static Result<std::unique_ptr<InputSpill>> create(const Options& options, Queues queues);
  // Waits for what is in flight. The files stay: see remove().
  ~InputSpill();
  InputSpill(const InputSpill&) = delete;
  InputSpill& operator=(const InputSpill&) = delete;

  // Its files; nothing may follow.
  Status remove();

  // A buffer to fill with the piece; nothing: none is free, or the piece is still in use.
  Result<std::optional<std::span<std::byte>>> try_begin(int piece);
  Result<std::span<std::byte>> begin(int piece);
  // The buffer is filled.
  void write(int piece) noexcept;

  // All pieces that were begun since, each once; all that was expected before has been taken.
  void expect(std::span<const int> pieces);
  // Whether take() would not wait.
  bool is_here(int piece) const;
  // The next one that is expected, checked. The caller's until release().
  Result<std::span<const std::byte>> take(int piece);
  void release(int piece) noexcept;

  // Until nothing is in flight.
  Status drain();
  Stats stats() const;

 private:
  enum class Use : std::uint8_t {
    kFree,
    kFilling,
    kSealing,
    kWriting,  // in flight
    kReading,  // in flight
    kRead,     // not checked yet
    kWritten,  // and wanted: as it was filled
    kTaken,
  };
  struct Buffer {
    InputSpill* owner = nullptr;
    std::span<std::byte> memory;
    swap::RecordIo io;
    Use use = Use::kFree;
    int piece = kNone;
  };
  struct Piece {
    int buffer = kNone;
    std::uint64_t generation = 0;
  };
  static constexpr int kNone = -1;
  using Lock = std::unique_lock<std::mutex>;

  InputSpill() = default;
  Piece& piece(int index) { return pieces_[static_cast<std::size_t>(index)]; }
  const Piece& piece(int index) const { return pieces_[static_cast<std::size_t>(index)]; }
  Buffer& buffer_of(int index) { return buffers_[static_cast<std::size_t>(piece(index).buffer)]; }
  Buffer* free_buffer_locked();
  bool may_begin_locked(int index);
  void occupy_locked(Buffer& buffer, int index, Use use);
  void vacate_locked(Buffer& buffer);
  bool is_wanted_next_locked(int index) const;
  void read_ahead(Lock& lock) noexcept;
  void fail_locked(Error error);
  template <typename Done>
  Status wait(Lock& lock, const Done& done);
  static void on_done(swap::RecordIo& io, void* context) noexcept;

  std::unique_ptr<aio::PinnedPool> pool_;
  std::vector<aio::PinnedPool::Lease> leases_;
  std::unique_ptr<swap::StateStore> store_;

  mutable std::mutex mutex_;         // guards all below
  std::condition_variable changed_;  // whatever is waited for may be
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  std::span<const int> expected_;  // not yet taken
  std::size_t begun_ = 0;          // of those, from the front: read, being read, or still there
  int starting_ = 0;               // threads on their way to the store
  int in_flight_ = 0;
  Status failure_;
  Stats stats_;
};

}  // namespace sluice::offload
