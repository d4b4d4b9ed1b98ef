#include "tests/engine/comm/tcp_ranks.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

std::vector<TcpOptions> options_of(const std::vector<RankPlace>& places) {
  auto listener = listen_at("127.0.0.1", 0, Reach::kThisHost);
  EXPECT_TRUE(listener.ok());
  std::vector<TcpOptions> all;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    TcpOptions options;
    const auto local_world = std::count_if(places.begin(), places.end(), [&](const RankPlace& p) {
      return p.host == places[rank].host;
    });
    options.context = {.rank = static_cast<int>(rank),
                       .world = static_cast<int>(places.size()),
                       .local_rank = places[rank].local_rank,
                       .local_world = static_cast<int>(local_world)};
    options.master_address = "127.0.0.1";
    options.master_port = port_of(*listener);
    options.host = places[rank].host;
    options.rendezvous_timeout = std::chrono::seconds(20);
    options.collective_timeout = std::chrono::seconds(20);
    all.push_back(options);
  }
  all[0].listening_socket = listener->release();
  return all;
}

std::vector<Status> in_threads(const std::vector<TcpOptions>& options, const OwningRankBody& body) {
  std::vector<Status> statuses(options.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < options.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto comm = make_tcp_communicator(options[rank]);
      statuses[rank] = comm.status();
      if (comm.ok()) body(static_cast<int>(rank), std::move(*comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<Status> in_threads(const std::vector<TcpOptions>& options, const RankBody& body) {
  return in_threads(options, OwningRankBody([&](int rank, std::unique_ptr<Communicator> comm) {
                      body(rank, *comm);
                    }));
}

std::string message_of(const Status& status) { return status.ok() ? "" : status.error().message(); }

}  // namespace sluice::engine
