// ControlChannel: how the ranks of a run find each other and detect failures, over TCP.
//
// Rendezvous: rank 0 listens at the master's address and every rank connects to it, retrying until
//             the time limit. When all have come, each gets a table of all ranks: hosts, local
//             ranks, and the address at which each listens for data. On a time-out the ranks that
//             came get the names of the missing ones.
// Life:       a thread watches. A process that dies closes its connection, and a host that vanishes
//             sends no beats. Rank 0 forwards to all ranks the failures that it sees or receives.
//             The first failure of the run counts, on every rank.
// Threads:    join() once; the rest from any thread.
// Trust:      a process that connects must prove the run's secret (handshake.h); others are
//             rejected. Later messages are neither encrypted nor signed: like NCCL and PyTorch,
//             this trusts anyone who can read or change the network's packets. If all ranks are on
//             one host and the master is localhost, only loopback is listened on; otherwise the
//             address that leads to the other ranks.
// Errors:     kTimedOut (who did not come), kInvalidArgument (ranks that do not fit together),
//             kBusy (the port is taken), otherwise as in communicator.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "aio/result.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/tcp_communicator.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

class ControlChannel {
 public:
  // Rank 0 may pass a socket that already listens.
  static Result<std::unique_ptr<ControlChannel>> join(const TcpOptions& options,
                                                      FileDescriptor listener);
  // Sends a good-bye, unless there was a failure.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  const RankTable& table() const { return table_; }
  // The socket to which higher ranks connect for data. Call it once.
  FileDescriptor take_data_listener() { return std::move(data_listener_); }

  Status failure() const;
  // A descriptor for poll() that becomes readable when there is a failure.
  int failure_event() const { return failure_event_.get(); }
  // Waits at most this long for a failure, and returns it.
  Status wait_for_failure(std::chrono::milliseconds at_most) const;
  // Reports that this rank has failed to the others, and waits up to a second for the sending.
  void fail(ErrorCode code, std::string_view reason) noexcept;

 private:
  struct Member : ControlConnection {
    Deadline last_heard = {};
  };
  struct Failure {
    int rank = -1;  // the failed rank
    bool told = false;
    Error seen_by_others{ErrorCode::kInternal, ""};
    Error seen_here{ErrorCode::kInternal, ""};
  };

  ControlChannel(const TcpOptions& options, RendezvousResult rendezvous);

  // Used by the watching thread.
  void watch();
  void receive(Member& member);
  void handle(Member& member, const Frame& frame);
  void lost(Member& member, const std::string& how);
  void report_failure();
  void send_shutdown();
  void record(int rank, Error seen_here, Error seen_by_others);
  std::string name_of_rank(int rank) const;

  const TcpOptions options_;
  const RankTable table_;
  FileDescriptor data_listener_;
  std::vector<Member> members_;  // rank 0: all others; else: rank 0
  FileDescriptor failure_event_;
  FileDescriptor wake_event_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Failure> failure_;
  bool stopping_ = false;

  std::thread watcher_;
};

}  // namespace sluice::engine
