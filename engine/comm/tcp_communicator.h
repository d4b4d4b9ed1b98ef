// make_tcp_communicator: host memory between processes, over sockets, on one host or several.
//
// How:     a rendezvous at rank 0 (control_channel.h), then one connection between each two ranks.
//          Messages between two ranks use only their connection; all connections work at once.
// Memory:  that of host_communicator.h, and the kernel's buffers.
// Threads: one of its own, which watches the other ranks; otherwise as communicator.h.
// Errors:  those of control_channel.h and host_communicator.h. A rank that is killed is reported by
//          name to all ranks within about a second; one that only hangs, by a collective's
//          time-out.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

class ControlChannel;

// One data connection between each two ranks: this rank connects to the lower ranks, and the higher
// ranks connect here, all at once. By rank; this rank's own entry stays empty. `key`: the run's.
//
// Errors: the run's failure, which ends this immediately; kTimedOut, naming the ranks that did not
//         come; those of handshake.h.
Result<std::vector<FileDescriptor>> connect_for_data(ControlChannel& control, int rank,
                                                     const RunKey& key, Deadline deadline);

struct TcpOptions {
  RankContext context = {};
  // Where rank 0 listens, as seen by the other ranks.
  std::string master_address = "localhost";
  std::uint16_t master_port = kDefaultMasterPort;
  // Rank 0: a socket that already listens there, of which it takes ownership. A parent that starts
  // the ranks can pick a free port and pass its socket on. -1: rank 0 makes one.
  int listening_socket = -1;
  // Equal for all ranks, and different for every run that might use the same port.
  std::string job = {};
  // Equal for all ranks, and secret. Empty: any process that has the job's name can join.
  std::string secret = {};
  // The address of this host at which it listens; empty: the one that leads to the others.
  std::string listen_address = {};
  // How the missing ranks could be started: a sentence for messages, or empty.
  std::string how_to_start = {};
  // Equal for the ranks of one host. Empty: this machine's name and boot.
  std::string host = {};

  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);
  // How long to wait for a reply from the process that listens at rank 0's address.
  std::chrono::milliseconds answer_timeout = std::chrono::minutes(1);
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(10);
  // A rank is considered gone (its host or network) after this time without a beat.
  std::chrono::milliseconds silence_timeout = std::chrono::seconds(30);
};

Result<std::unique_ptr<Communicator>> make_tcp_communicator(const TcpOptions& options);

}  // namespace sluice::engine
