// Rendezvous: how the ranks of a run find each other, see control_channel.h. Rank 0 gathers, the
//             others ask it; what comes of it is the same for all: a table, and the connections
//             for the control channel.
//
// Threads: any, one for a rank.
// Errors:  control_channel.h's. Those who came are told of what rank 0 returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/comm/host_links.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

// What the rendezvous hands to every rank.
struct RankTable {
  std::string token;                 // drawn by rank 0, another for each meeting
  std::vector<RankPlace> places;     // by rank
  std::vector<HostAndPort> targets;  // where each listens for data
};

struct ControlConnection {
  int rank = -1;  // at the other end
  FileDescriptor socket;
  FrameReader reader = FrameReader();
};

struct Meeting {
  RankTable table;
  FileDescriptor data_listener;
  std::vector<ControlConnection> connections;  // rank 0: to all others; else: to rank 0
};

// Rank 0 may bring a socket that listens already.
Result<Meeting> meet(const TcpOptions& options, FileDescriptor listener);

}  // namespace sluice::engine
