// Communicator: collectives between the ranks of a run, or of a part of it.
//
// All ranks of the group call the same collective with the same sizes, in the same order; rank r's
// piece of a whole is the r-th of world_size() equal pieces. World size 1 is not a special case:
// shards exist there too, and every rule below holds.
//
// Memory:  spans belong to the caller and stay untouched by others until the collective is done.
//          Nothing is allocated. Input and output are disjoint, or in place: the input is exactly
//          the output, or the rank's own piece of it. Any other overlap is refused.
// Streams: without a stream the spans are host memory and the call returns when it is done. With
//          one they are device memory, the call enqueues there and returns; a later failure shows
//          at the next call, or at finish().
// Threads: one at a time, and in one order on all ranks; abort() and health() from any thread.
// Errors:  kInvalidArgument for sizes and overlaps that break these rules, before anything is sent;
//          afterwards whatever the transport reports, naming the ranks that are to blame where it
//          can know: kTimedOut (they did not come), kIo (they are gone), kCancelled (one called
//          abort(); with its reason), kInvalidArgument (they called another collective, or with
//          another size). Then the communicator is of no further use, and every later call returns
//          that first error. A rank that ends for a reason of its own, a refused argument included,
//          calls abort() before: the others are waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "aio/result.h"

namespace sluice::engine {

enum class ProcessGroup : std::uint8_t {
  kWorld,  // every rank of the run
  kNode,   // those of this host, by local rank
  kPeers,  // those of this local rank on all hosts
};
constexpr int kProcessGroups = 3;

// What all_gather_text() takes of a rank.
constexpr std::uint64_t kMaxTextBytes = 1U << 20;

struct CollectiveOptions {
  ProcessGroup group = ProcessGroup::kWorld;
  void* stream = nullptr;  // a cudaStream_t; nullptr: host memory
  // For all_to_all: the distance from one piece of what is sent to the next, where they do not
  // follow each other; then it is at least a piece, and `sent` ends with the last one.
  std::uint64_t sent_stride_bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // In [0, world_size(group)), the same for the whole run.
  virtual int rank(ProcessGroup group = ProcessGroup::kWorld) const = 0;
  virtual int world_size(ProcessGroup group = ProcessGroup::kWorld) const = 0;

  // all = the pieces of all ranks. all.size() = world_size * mine.size().
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                    const CollectiveOptions& options = {});
  // In place: what rank `root` holds.
  Status broadcast(std::span<std::byte> bytes, int root, const CollectiveOptions& options = {});
  // Piece r of `received` = piece number rank() of what rank r sends. Both have one size, which is
  // a multiple of world_size, unless sent_stride_bytes says where pieces are sent from.
  Status all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                    const CollectiveOptions& options = {});
  // Returns when every rank of the group has called it.
  Status barrier(ProcessGroup group = ProcessGroup::kWorld);

  // Small values of the host, whatever memory else is moved. These allocate.
  // all[r] = what rank r gave.
  template <typename T>
  Status all_gather_values(const T& mine, std::type_identity_t<std::span<T>> all,
                           ProcessGroup group = ProcessGroup::kWorld) {
    static_assert(std::is_trivially_copyable_v<T>);
    return all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all),
                      {.group = group});
  }
  // Texts of any lengths up to kMaxTextBytes.
  Result<std::vector<std::string>> all_gather_text(std::string_view mine,
                                                   ProcessGroup group = ProcessGroup::kWorld);
  // In place, and exact: kInvalidArgument, on every rank, where a sum does not fit. There is none
  // of doubles: their sum depends on the order, which is the caller's matter after
  // all_gather_values().
  Status sum(std::span<std::int64_t> values, ProcessGroup group = ProcessGroup::kWorld);

  // Waits until what was enqueued on the stream is done, but no longer than the time-out of
  // collectives, nor once another rank is known to have failed.
  virtual Status finish(void* stream) = 0;
  // Ends the run: what other ranks wait in, and their later calls, return kCancelled with this
  // reason within about a second. The first reason counts. MPI ends all processes, this one
  // included.
  virtual void abort(std::string_view reason) noexcept = 0;
  // The first failure that is known of any rank, without waiting.
  virtual Status health() const = 0;

 protected:
  Communicator() = default;

 private:
  // The same, once the arguments are known to keep the rules above.
  virtual Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                               const CollectiveOptions& options) = 0;
  virtual Status do_broadcast(std::span<std::byte> bytes, int root,
                              const CollectiveOptions& options) = 0;
  virtual Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                               const CollectiveOptions& options) = 0;
  virtual Status do_barrier(ProcessGroup group) = 0;
};

// One rank, and it is rank 0 of every group: what is received is what is sent. It never moves
// device memory: with a stream the collectives have to be in place.
std::unique_ptr<Communicator> make_single_process_communicator();

}  // namespace sluice::engine
