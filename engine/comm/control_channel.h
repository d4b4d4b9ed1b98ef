// ControlChannel: how the ranks of a run find each other and know that all are alive, over TCP.
//
// Rendezvous: rank 0 listens at the master's address and everyone connects to it, trying again
//             until the time limit. When all have come they get a table of all: hosts, local ranks,
//             and where each listens for data. Who is missing then is named to those who came.
// Life:       a thread watches. A process that dies closes its connection, a host that vanishes
//             sends no beats; rank 0 passes on to all what it sees or is told. The first failure of
//             the run is the one that counts, everywhere.
// Threads:    join() once; the rest from any thread.
// Trust:      who connects proves the run's secret (handshake.h), and strangers are turned away.
//             What passes afterwards is neither encrypted nor signed: who can read or change the
//             network's packets is trusted, as NCCL and PyTorch trust it. Where all ranks are of
//             one host and the master is localhost, nothing listens beyond loopback; else at the
//             address that leads to the others.
// Errors:     kTimedOut (who did not come), kInvalidArgument (ranks that do not fit together),
//             kBusy (the port is taken), else as communicator.h.
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
  // Rank 0 may bring a socket that listens already.
  static Result<std::unique_ptr<ControlChannel>> join(const TcpOptions& options,
                                                      FileDescriptor listener);
  // Says good-bye, unless there was a failure.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  const RankTable& table() const { return table_; }
  // Where the ranks above this one connect for data; once.
  FileDescriptor take_data_listener() { return std::move(data_listener_); }

  Status failure() const;
  // Becomes readable, for poll(), when there is a failure.
  int failure_event() const { return failure_event_.get(); }
  // Waits that long for one.
  Status wait_for_failure(std::chrono::milliseconds at_most) const;
  // This rank has failed: tells the others, and waits up to a second until that has left.
  void fail(ErrorCode code, std::string_view reason) noexcept;

 private:
  struct Member : ControlConnection {
    Deadline last_heard = {};
  };
  struct Failure {
    int rank = -1;  // which one failed
    bool told = false;
    Error seen_by_others{ErrorCode::kInternal, ""};
    Error seen_here{ErrorCode::kInternal, ""};
  };

  ControlChannel(const TcpOptions& options, Meeting meeting);

  // Of the watching thread.
  void watch();
  void hear(Member& member);
  void handle(Member& member, const Frame& frame);
  void lost(Member& member, const std::string& how);
  void tell_failure();
  void say_goodbye();
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
