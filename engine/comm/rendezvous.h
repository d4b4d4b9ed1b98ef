// Rendezvous: how the ranks of a run find each other, see control_channel.h. Rank 0 gathers the
//             other ranks, which connect to it. All ranks get the same result: a table, and the
//             connections of the control channel.
//
// Threads: any, one for each rank.
// Errors:  those of control_channel.h. Ranks that came receive the error that rank 0 returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/comm/host_links.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

// The result of the rendezvous, for every rank.
struct RankTable {
  std::string token;                 // drawn by rank 0, different for each rendezvous
  std::vector<RankPlace> places;     // by rank
  std::vector<HostAndPort> targets;  // where each rank listens for data
};

struct ControlConnection {
  int rank = -1;  // at the other end
  FileDescriptor socket;
  FrameReader reader = FrameReader();
};

struct RendezvousResult {
  RankTable table;
  FileDescriptor data_listener;
  std::vector<ControlConnection> connections;  // rank 0: to all others; else: to rank 0
};

// Rank 0 may pass a socket that already listens.
Result<RendezvousResult> find_ranks(const TcpOptions& options, FileDescriptor listener);

}  // namespace sluice::engine
