// HostLinks: messages in host memory between the ranks of a run. A transport implements them, and
// HostCommunicator (host_communicator.h) builds collectives from them.
//
// Memory:  exchange() allocates only for error messages.
// Threads: exchange() one at a time; abort() and failure() any.
// Errors:  those of communicator.h. All later calls return the first failure of the run, on
//          whichever rank it was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/comm/communicator.h"

namespace sluice::engine {

// Where a rank runs.
struct RankPlace {
  // Equal for the ranks of one host, and only for them: the host's name, and after a '/' an
  // identifier that distinguishes hosts of the same name.
  std::string host;
  int local_rank = 0;
};

// The name in RankPlace::host, for messages.
std::string host_name(std::string_view host);
// "rank 2 (gpu01)".
std::string name_of_rank(std::span<const RankPlace> places, int rank);
// "rank 2", "ranks 2 and 5", "ranks 1, 2 and 5"; of many, the first ones and their number.
std::string list_ranks(std::span<const int> ranks);

// The ranks of a group, in the group's order, and this rank's position among them.
struct GroupMembers {
  std::vector<int> world_ranks;
  int own_index = 0;
};
using Groups = std::array<GroupMembers, kProcessGroups>;

// kInvalidArgument if two ranks of a host have the same local rank, or if a local rank is missing.
Result<Groups> make_groups(std::span<const RankPlace> places, int own_rank);

// From make_groups()'s places, which are the same on all ranks.
offload::Topology topology_of(std::span<const RankPlace> places, int own_rank);

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSendReceive,
};
const char* name_of(CollectiveKind kind);

// The properties of a message on which both ends have to agree.
struct MessageLabel {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ProcessGroup group = ProcessGroup::kWorld;
  std::uint64_t sequence = 0;     // among the collectives of this group; 0 for kSendReceive
  std::uint64_t whole_bytes = 0;  // of the message's collective; 0 for kSendReceive

  bool operator==(const MessageLabel&) const = default;
};

// The label as sent, before the message. All hosts are little-endian x86-64.
struct WireLabel {
  std::uint32_t magic = kMagic;
  std::uint8_t kind = 0;
  std::uint8_t group = 0;
  std::uint16_t zero = 0;
  std::uint64_t sequence = 0;
  std::uint64_t whole_bytes = 0;
  std::uint64_t message_bytes = 0;

  static constexpr std::uint32_t kMagic = 0x534c4d31;
};
static_assert(sizeof(WireLabel) == 32);

WireLabel to_wire(const MessageLabel& label, std::uint64_t message_bytes);
// kInvalidArgument, naming both sides, if the received label differs from the expected one.
Status check_label(int from, const WireLabel& came, const WireLabel& expected);

struct Outgoing {
  int to = 0;  // rank of the world
  std::span<const std::byte> bytes;
};
struct Incoming {
  int from = 0;
  std::span<std::byte> bytes;
};

class HostLinks {
 public:
  virtual ~HostLinks() = default;
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  virtual int rank() const = 0;
  virtual const std::vector<RankPlace>& places() const = 0;  // by rank

  // Sends and receives all messages at once, at most one in each direction per rank, never to this
  // one. Returns when the last is done. Every Outgoing matches an Incoming of the same size on the
  // other side.
  virtual Status exchange(const MessageLabel& label, std::span<const Outgoing> sends,
                          std::span<const Incoming> receives) = 0;

  virtual void abort(std::string_view reason) noexcept = 0;
  virtual Status failure() const = 0;

 protected:
  HostLinks() = default;
};

}  // namespace sluice::engine
