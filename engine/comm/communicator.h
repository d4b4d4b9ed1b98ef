// Communicator: collectives and messages between the ranks of a run, or of a part of it.
//
// All ranks of a group call the same collective with the same sizes, in the same order. Rank r's
// piece of a whole is the r-th of world_size() equal pieces. World size 1 is not a special case: it
// has shards too, and every rule below holds. A message is called by its two ranks alone; between
// these two its place among the collectives is the same.
//
// Memory:  spans belong to the caller, which must not touch them until the collective is done.
//          Nothing is allocated. Input and output are disjoint, or in place: the input is exactly
//          the output, or the rank's own piece of it. Any other overlap is refused.
// Streams: without a stream the spans are host memory, and the call returns when it is done. With a
//          stream they are device memory; the call enqueues there and returns, and a later failure
//          is returned by the next call or by finish().
// Threads: one at a time, and in one order on all ranks; abort() and health() from any thread.
// Errors:  kInvalidArgument, before anything is sent, for sizes and overlaps that break these
//          rules. After that, the transport's error, naming the ranks at fault if it can: they did
//          not come (kTimedOut), or they are gone (kIo). One may also have called abort(), with its
//          reason (kCancelled), or another collective or size (kInvalidArgument). The communicator
//          is then unusable, and every later call returns that first error. A rank that ends for a
//          reason of its own, even a refused argument, must call abort() first, because the others
//          wait for it.
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
#include "offload/topology.h"

namespace sluice::engine {

enum class ProcessGroup : std::uint8_t {
  kWorld,  // every rank of the run
  kNode,   // the ranks of this host, by local rank
  kPeers,  // the ranks with this local rank on all hosts
};
constexpr int kProcessGroups = 3;

// The maximum text of one rank in all_gather_text().
constexpr std::uint64_t kMaxTextBytes = 1U << 20;

struct CollectiveOptions {
  ProcessGroup group = ProcessGroup::kWorld;
  void* stream = nullptr;  // a cudaStream_t; nullptr: host memory
  // For all_to_all: the distance between the starts of neighbouring sent pieces, if they are not
  // contiguous. It is at least one piece, and `sent` ends with the last piece.
  std::uint64_t sent_stride_bytes = 0;
  // For all_to_all, not in place: this many of them at once, one after the other in both spans.
  std::uint64_t batches = 1;
};

constexpr int kNoRank = -1;

// What a rank sends to one rank of the group, and what it receives from one, perhaps another.
struct Messages {
  std::span<const std::byte> sent = {};
  int to = kNoRank;  // kNoRank: nothing is sent
  std::span<std::byte> received = {};
  int from = kNoRank;  // kNoRank: nothing is received
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // In [0, world_size(group)), constant for the whole run.
  virtual int rank(ProcessGroup group = ProcessGroup::kWorld) const = 0;
  virtual int world_size(ProcessGroup group = ProcessGroup::kWorld) const = 0;
  // Equal on all ranks where it is regular.
  virtual offload::Topology topology() const = 0;

  // all = the pieces of all ranks. all.size() = world_size * mine.size().
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                    const CollectiveOptions& options = {});
  // In place: every rank gets the bytes of rank `root`.
  Status broadcast(std::span<std::byte> bytes, int root, const CollectiveOptions& options = {});
  // Piece r of `received` = piece number rank() of what rank r sends. Both spans have one size, a
  // multiple of world_size, unless sent_stride_bytes is set.
  Status all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                    const CollectiveOptions& options = {});
  // Both messages at once (MPI_Sendrecv), so that ranks that send to each other do not deadlock.
  // The ranks at their other ends call this with spans of the same sizes.
  Status send_receive(const Messages& messages, const CollectiveOptions& options = {});
  // Returns once every rank of the group has called it.
  Status barrier(ProcessGroup group = ProcessGroup::kWorld);

  // For small host values, whichever memory the collectives move. These allocate.
  // all[r] = the value of rank r.
  template <typename T>
  Status all_gather_values(const T& mine, std::type_identity_t<std::span<T>> all,
                           ProcessGroup group = ProcessGroup::kWorld) {
    static_assert(std::is_trivially_copyable_v<T>);
    return all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all),
                      {.group = group});
  }
  // Texts of any length up to kMaxTextBytes; a group of one rank gets its own back.
  Result<std::vector<std::string>> all_gather_text(std::string_view mine,
                                                   ProcessGroup group = ProcessGroup::kWorld);
  // In place and exact: kInvalidArgument, on every rank, if a sum overflows. There is none for
  // doubles: their sum depends on the order, which the caller chooses after all_gather_values().
  Status sum(std::span<std::int64_t> values, ProcessGroup group = ProcessGroup::kWorld);

  // A communicator of these ranks of the world, numbered in this order; on each host its local
  // ranks follow that order too. Only these ranks call this. It must not outlive this one. abort(),
  // a failure, and the names of ranks in messages are those of the whole run.
  Result<std::unique_ptr<Communicator>> part(std::span<const int> ranks);

  // Waits until the work enqueued on the stream is done, but no longer than the collectives'
  // time-out, and not after another rank is known to have failed.
  virtual Status finish(void* stream) = 0;
  // Ends the run: collectives in which other ranks wait, and their later calls, return kCancelled
  // with this reason within about a second. The first reason counts. With MPI this ends all
  // processes, including this one.
  virtual void abort(std::string_view reason) noexcept = 0;
  // The first known failure of any rank, without waiting.
  virtual Status health() const = 0;

 protected:
  Communicator() = default;

 private:
  // The collectives, called after their arguments were checked.
  virtual Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                               const CollectiveOptions& options) = 0;
  virtual Status do_broadcast(std::span<std::byte> bytes, int root,
                              const CollectiveOptions& options) = 0;
  virtual Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                               const CollectiveOptions& options) = 0;
  virtual Status do_send_receive(const Messages& messages, const CollectiveOptions& options) = 0;
  virtual Status do_barrier(ProcessGroup group) = 0;
  virtual Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) = 0;
};

// A world of one rank, which is rank 0 of every group and receives what it sends. It never moves
// device memory: with a stream the collectives have to be in place. It has no state, and abort()
// does nothing, because no rank waits.
std::unique_ptr<Communicator> make_single_process_communicator();
// One that everybody may use, for as long as the process lives.
Communicator& single_process() noexcept;

}  // namespace sluice::engine
