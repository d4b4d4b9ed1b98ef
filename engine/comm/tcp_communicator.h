// make_tcp_communicator: host memory between processes, over sockets, on one host or several.
//
// How:     a rendezvous at rank 0 (control_channel.h), then one connection between each two ranks:
//          what one sends to another takes that way alone, all ways at once.
// Memory:  that of host_communicator.h, and the kernel's buffers.
// Threads: one of its own, which watches the other ranks; as communicator.h otherwise.
// Errors:  control_channel.h's and host_communicator.h's. A rank that is killed is known to all
//          within about a second, and named; one that only hangs, by the time-out of a collective.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"

namespace sluice::engine {

struct TcpOptions {
  RankContext context = {};
  // Where rank 0 listens, as the others reach it.
  std::string master_address = "localhost";
  std::uint16_t master_port = kDefaultMasterPort;
  // Rank 0: a socket that listens there already, which is taken over: a parent that starts the
  // ranks can draw a free port and hand it down. -1: rank 0 makes one.
  int listening_socket = -1;
  // The same for all ranks, and another for every run that might meet this one at its port.
  std::string job = {};
  // The same for all ranks, and known to nobody else. Empty: who knows the job can join.
  std::string secret = {};
  // An address of this host where it listens; empty: the one that leads to the others.
  std::string listen_address = {};
  // How those who did not come could be started: a sentence for messages, or empty.
  std::string how_to_start = {};
  // Equal for the ranks of one host. Empty: this machine's name and boot.
  std::string host = {};

  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  // How long whatever listens where rank 0 should may keep silent.
  std::chrono::milliseconds answer_timeout = std::chrono::minutes(1);
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(10);
  // A rank that has not been heard of for so long is gone: its host, or its network.
  std::chrono::milliseconds silence_timeout = std::chrono::seconds(30);
};

Result<std::unique_ptr<Communicator>> make_tcp_communicator(const TcpOptions& options);

}  // namespace sluice::engine
