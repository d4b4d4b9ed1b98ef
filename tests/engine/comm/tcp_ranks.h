// Ranks on this machine that meet over TCP, as threads of a test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/tcp_communicator.h"
#include "tests/engine/comm/collective_suite.h"

namespace sluice::engine {

// The options of each rank of a run; rank 0 gets a listening socket. Time-outs are 20 s.
std::vector<TcpOptions> options_of(const std::vector<RankPlace>& places);

using RankBody = std::function<void(int rank, Communicator& comm)>;
using OwningRankBody = std::function<void(int rank, std::unique_ptr<Communicator> comm)>;

// Runs each rank in a thread. Returns the status of each rendezvous.
std::vector<Status> in_threads(const std::vector<TcpOptions>& options, const OwningRankBody& body);
std::vector<Status> in_threads(const std::vector<TcpOptions>& options, const RankBody& body);

std::string message_of(const Status& status);

}  // namespace sluice::engine
