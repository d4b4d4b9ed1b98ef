// The bytes that collectives send between hosts, counted message by message.
#include "engine/comm/host_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/comm/collective_suite.h"

namespace sluice::engine {
namespace {

// Messages between threads that all make the same calls.
struct Meeting {
  explicit Meeting(std::vector<RankPlace> all)
      : places(std::move(all)),
        together(static_cast<std::ptrdiff_t>(places.size())),
        sends(places.size()),
        between_hosts_bytes(places.size()) {}

  const std::vector<RankPlace> places;
  std::barrier<> together;
  std::vector<std::span<const Outgoing>> sends;    // by rank
  std::vector<std::uint64_t> between_hosts_bytes;  // received, by rank
};

class CountedLinks final : public HostLinks {
 public:
  CountedLinks(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  const std::vector<RankPlace>& places() const override { return meeting_.places; }
  void abort(std::string_view /*reason*/) noexcept override {}
  Status failure() const override { return {}; }

  Status exchange(const MessageLabel& /*label*/, std::span<const Outgoing> sends,
                  std::span<const Incoming> receives) override {
    const auto own = static_cast<std::size_t>(rank_);
    meeting_.sends[own] = sends;
    meeting_.together.arrive_and_wait();
    for (const Incoming& incoming : receives) {
      const auto from = static_cast<std::size_t>(incoming.from);
      for (const Outgoing& outgoing : meeting_.sends[from]) {
        if (outgoing.to != rank_) continue;
        EXPECT_EQ(outgoing.bytes.size(), incoming.bytes.size());
        std::copy(outgoing.bytes.begin(), outgoing.bytes.end(), incoming.bytes.begin());
        if (meeting_.places[from].host != meeting_.places[own].host)
          meeting_.between_hosts_bytes[own] += outgoing.bytes.size();
      }
    }
    meeting_.together.arrive_and_wait();
    return {};
  }

 private:
  Meeting& meeting_;
  const int rank_;
};

// Gathers pieces of this size, and returns the bytes that came from other hosts.
std::uint64_t gathered_between_hosts(const std::vector<int>& ranks_of_hosts,
                                     std::size_t piece_bytes) {
  Meeting meeting(places_of(ranks_of_hosts));
  const std::size_t world = meeting.places.size();
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm =
          make_host_communicator(std::make_unique<CountedLinks>(meeting, static_cast<int>(rank)));
      ASSERT_TRUE(comm.ok());
      const std::vector<std::byte> mine(piece_bytes, static_cast<std::byte>(rank + 1));
      std::vector<std::byte> all(world * piece_bytes);
      EXPECT_TRUE((*comm)->all_gather(mine, all).ok());
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i], static_cast<std::byte>(i / piece_bytes + 1)) << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : meeting.between_hosts_bytes) total += bytes;
  return total;
}

TEST(HostCommunicator, BringsALargeGatheredPieceOnceIntoEachHost) {
  constexpr std::size_t kLarge = 100'000;
  for (const auto& [hosts, ranks] : {std::pair{2, 3}, {3, 2}, {2, 1}, {1, 4}}) {
    const auto others = static_cast<std::uint64_t>(hosts - 1);
    const auto world = static_cast<std::uint64_t>(hosts) * static_cast<std::uint64_t>(ranks);
    EXPECT_EQ(
        gathered_between_hosts(std::vector<int>(static_cast<std::size_t>(hosts), ranks), kLarge),
        others * world * kLarge)
        << hosts << " hosts of " << ranks;
  }
  // Directly, to each rank: small pieces, and hosts with different numbers of ranks.
  EXPECT_EQ(gathered_between_hosts({2, 2}, 100), 4 * 2 * 100U);
  EXPECT_EQ(gathered_between_hosts({2, 1}, kLarge), 2 * 2 * kLarge);
}

}  // namespace
}  // namespace sluice::engine
