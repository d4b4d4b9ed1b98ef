// HostLinks: messages in host memory between the ranks of a run. A transport provides them, and
// HostCommunicator (host_communicator.h) makes collectives of them.
//
// Memory:  exchange() allocates nothing but what an error says.
// Threads: exchange() one at a time; abort() and failure() any.
// Errors:  as communicator.h has them. The first failure of the run, wherever it was, is the one
//          that all later calls return.
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
  // Equal for the ranks of one host, and only for those: its name, and after a '/' what else tells
  // it from others.
  std::string host;
  int local_rank = 0;
};

// Of RankPlace::host, the part for people.
std::string host_name(std::string_view host);
// "rank 2 (gpu01)".
std::string name_of_rank(std::span<const RankPlace> places, int rank);
// "rank 2", "ranks 2 and 5", "ranks 1, 2 and 5"; of very many, the first ones and their number.
std::string list_ranks(std::span<const int> ranks);

// The ranks of the run that a group has, in the group's order, and which of them this one is.
struct GroupMembers {
  std::vector<int> world_ranks;
  int own_index = 0;
};
using Groups = std::array<GroupMembers, kProcessGroups>;

// kInvalidArgument where two ranks of a host have one local rank, or where one is left out.
Result<Groups> make_groups(std::span<const RankPlace> places, int own_rank);

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kBroadcast,
  kAllToAll,
  kBarrier,
};
const char* name_of(CollectiveKind kind);

// What both ends of a message have to agree on.
struct MessageLabel {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ProcessGroup group = ProcessGroup::kWorld;
  std::uint64_t sequence = 0;     // of the messages of this group
  std::uint64_t whole_bytes = 0;  // of the collective that the message is a part of

  bool operator==(const MessageLabel&) const = default;
};

// How a label goes over the wire, ahead of the message. All hosts are little-endian x86-64.
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
// kInvalidArgument that names both sides, where what came is not what is expected here.
Status check_label(int from, const WireLabel& came, const WireLabel& expected);

struct Outgoing {
  int to = 0;  // ranks of the world
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
  virtual const std::vector<RankPlace>& places() const = 0;  // of every rank

  // Sends and receives all of them at once, at most one each way with a rank, never this one;
  // returns when the last is done. Every Outgoing meets an Incoming of the same size on the other
  // side.
  virtual Status exchange(const MessageLabel& label, std::span<const Outgoing> sends,
                          std::span<const Incoming> receives) = 0;

  virtual void abort(std::string_view reason) noexcept = 0;
  virtual Status failure() const = 0;

 protected:
  HostLinks() = default;
};

}  // namespace sluice::engine
