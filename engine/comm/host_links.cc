#include "engine/comm/host_links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "aio/check.h"

namespace sluice::engine {

std::string host_name(std::string_view host) { return std::string(host.substr(0, host.find('/'))); }

std::string name_of_rank(std::span<const RankPlace> places, int rank) {
  std::string name = "rank " + std::to_string(rank);
  const auto index = static_cast<std::size_t>(rank);
  if (rank < 0 || index >= places.size()) return name;
  return name + " (" + host_name(places[index].host) + ")";
}

std::string list_ranks(std::span<const int> ranks) {
  constexpr std::size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  const std::size_t shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i > 0 && i + 1 == ranks.size();
    text += (i == 0 ? " " : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (shown < ranks.size()) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSendReceive:
      return "send_receive";
  }
  return "an unknown collective";
}

WireLabel to_wire(const MessageLabel& label, std::uint64_t message_bytes) {
  return {.kind = static_cast<std::uint8_t>(label.kind),
          .group = static_cast<std::uint8_t>(label.group),
          .sequence = label.sequence,
          .whole_bytes = label.whole_bytes,
          .message_bytes = message_bytes};
}

Status check_label(int from, const WireLabel& came, const WireLabel& expected) {
  const std::string them = "rank " + std::to_string(from);
  if (came.magic != WireLabel::kMagic) {
    return Error(ErrorCode::kCorrupt, them + " sent a malformed message");
  }
  if (std::memcmp(&came, &expected, sizeof came) == 0) return {};
  const auto said = [](const WireLabel& label) {
    constexpr std::array kGroups = {"world", "node", "peers"};
    const auto kind = static_cast<CollectiveKind>(label.kind);
    return std::string(name_of(kind)) + " of " + std::to_string(label.whole_bytes) +
           " bytes (message " + std::to_string(label.sequence) + " of the group " +
           (label.group < kGroups.size() ? kGroups[label.group] : "?") + ", " +
           std::to_string(label.message_bytes) + " bytes)";
  };
  return Error(ErrorCode::kInvalidArgument, "ranks call different collectives: " + them +
                                                " is in " + said(came) + ", but this rank in " +
                                                said(expected));
}

Result<Groups> make_groups(std::span<const RankPlace> places, int own_rank) {
  std::map<std::string, std::map<int, int>, std::less<>> hosts;  // local rank -> rank
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const RankPlace& place = places[rank];
    const auto [there, is_new] =
        hosts[place.host].emplace(place.local_rank, static_cast<int>(rank));
    if (!is_new) {
      return Error(ErrorCode::kInvalidArgument,
                   "ranks " + std::to_string(there->second) + " and " + std::to_string(rank) +
                       " are both local rank " + std::to_string(place.local_rank) + " of host " +
                       host_name(place.host) +
                       ", so they would share a GPU: set LOCAL_RANK to a different number for "
                       "each, and LOCAL_WORLD_SIZE to their number");
    }
  }
  for (const auto& [host, ranks] : hosts) {
    if (ranks.rbegin()->first + 1 != static_cast<int>(ranks.size()) || ranks.begin()->first != 0) {
      return Error(ErrorCode::kInvalidArgument, "host " + host_name(host) + " has " +
                                                    std::to_string(ranks.size()) +
                                                    " ranks, whose local ranks are not 0 to " +
                                                    std::to_string(ranks.size() - 1));
    }
  }
  Groups groups;
  const auto add = [&](ProcessGroup group, int rank) {
    GroupMembers& members = groups[static_cast<std::size_t>(group)];
    if (rank == own_rank) members.own_index = static_cast<int>(members.world_ranks.size());
    members.world_ranks.push_back(rank);
  };
  const RankPlace& own = places[static_cast<std::size_t>(own_rank)];
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    add(ProcessGroup::kWorld, static_cast<int>(rank));
    if (places[rank].local_rank == own.local_rank)
      add(ProcessGroup::kPeers, static_cast<int>(rank));
  }
  for (const auto& [local_rank, rank] : hosts.find(own.host)->second)
    add(ProcessGroup::kNode, rank);
  return groups;
}

offload::Topology topology_of(std::span<const RankPlace> places, int own_rank) {
  const std::string& own = places[static_cast<std::size_t>(own_rank)].host;
  const auto of_host = static_cast<std::size_t>(std::count_if(
      places.begin(), places.end(), [&](const RankPlace& place) { return place.host == own; }));
  SLUICE_CHECK(of_host > 0, "places with this rank's own");
  offload::Topology topology{.world = static_cast<int>(places.size()),
                             .local_world = static_cast<int>(of_host),
                             .is_regular = places.size() % of_host == 0};
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const std::size_t local_rank = rank % of_host;
    if (places[rank].local_rank != static_cast<int>(local_rank) ||
        places[rank].host != places[rank - local_rank].host)
      topology.is_regular = false;
  }
  return topology;
}

}  // namespace sluice::engine
