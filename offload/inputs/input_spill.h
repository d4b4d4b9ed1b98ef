// InputSpill: stores the inputs that units had in forward on NVMe until their backward needs them
// (activations on the drives, as in "ZeRO-Infinity", SC 2021, section 5.1.2). A piece is one unit's
// input for one micro-batch. All pieces have one size, and each is a record of InputSpill's own
// store.
//
//   for (piece, in forward's order) {
//     fill(*spill.begin(piece));     // a free buffer; a GPU may still be copying into it later
//     spill.write(piece);            // seals it and starts the write
//   }
//   spill.expect(pieces);            // in backward's order: reading begins
//   for (piece of pieces) { use(*spill.take(piece)); spill.release(piece); }
//
// Memory:  buffers of footprint().buffer_bytes in total, pinned, taken once in create(). expect()
//          keeps a span of the caller's memory, which must live until all its pieces have been
//          taken.
// Order:   pieces are written once, then expected and taken once in that order; then the cycle may
//          repeat. A piece whose buffer still holds it when it is expected is not read.
// Waiting: begin() and take() wait for transfers. They cannot wait forever: buffers go to writes
//          until all have begun, and then to the expected pieces, in their order.
// Threads: begin(), try_begin(), expect(), is_here() and take() from one thread; write() and
//          release() from any, such as a GPU's callbacks: they never wait.
// Errors:  the first failed transfer or damaged piece ends the spill. begin(), take() and drain()
//          return that error, which begins with the piece's name. create() has StateStore's errors.
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
    std::vector<std::string> units;    // names of the units whose inputs go to the drives
    std::uint64_t pieces_of_unit = 0;  // micro-batches of a wave; piece = index of unit * this + m
    std::uint64_t piece_bytes = 0;
    int most_buffers = 64;            // limit on the buffers of footprint()
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
    std::uint64_t buffer_bytes = 0;  // all buffers, resident and pinned
    std::uint64_t nvme_bytes = 0;
  };
  struct Stats {
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
  };

  // What create() takes for `pieces` pieces of this size.
  static Footprint footprint(std::uint64_t pieces, std::uint64_t piece_bytes);
  // kInvalidArgument: a piece is larger than a record can be.
  static Status check(const Options& options);
  // If anything fails, nothing remains allocated and no files remain.
  static Result<std::unique_ptr<InputSpill>> create(const Options& options, Queues queues);
  // Waits for transfers in flight. The files remain: see remove().
  ~InputSpill();
  InputSpill(const InputSpill&) = delete;
  InputSpill& operator=(const InputSpill&) = delete;

  // Removes the files; no call may follow.
  Status remove();

  // A buffer to fill with the piece; empty: none is free, or the piece is still in use.
  Result<std::optional<std::span<std::byte>>> try_begin(int piece);
  Result<std::span<std::byte>> begin(int piece);
  // Call when the buffer is filled.
  void write(int piece) noexcept;

  // `pieces`: all pieces begun since the last call, each once; all pieces expected before must have
  // been taken.
  void expect(std::span<const int> pieces);
  // Whether take() would not wait.
  bool is_here(int piece) const;
  // The next expected piece, checked. The caller may use it until release().
  Result<std::span<const std::byte>> take(int piece);
  void release(int piece) noexcept;

  // Waits until nothing is in flight.
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
    kWritten,  // and expected: its buffer still has it
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

  mutable std::mutex mutex_;         // guards all members below
  std::condition_variable changed_;  // signals every change that a thread may wait for
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  std::span<const int> expected_;  // not yet taken
  std::size_t begun_ = 0;          // of expected_, from the front: read, being read, or still held
  int starting_ = 0;               // threads that are passing a transfer to the store
  int in_flight_ = 0;
  Status failure_;
  Stats stats_;
};

}  // namespace sluice::offload
