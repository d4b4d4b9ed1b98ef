// A unit's sums are reduced by ranks on several hosts, element by element in SumOrder's order; and
// the bytes that this costs between hosts.
#include "engine/step/rank_reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/comm/host_links.h"
#include "offload/sum_codec.h"
#include "offload/sum_order.h"
#include "offload/topology.h"
#include "offload/unit_shards.h"
#include "tests/engine/comm/counting_communicator.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

using Values = std::vector<float>;

constexpr std::uint64_t kElements = 1500;  // of the unit

void add(Values& to, const Values& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// The definition, of a lane's sum each: by round, by a tree of the round's lanes.
Values definition(const std::vector<std::vector<Values>>& rounds) {
  Values sum;
  for (std::vector<Values> nodes : rounds) {
    while (nodes.size() > 1) {
      std::vector<Values> above;
      for (std::size_t i = 0; i < nodes.size(); i += 2) {
        if (i + 1 < nodes.size()) add(nodes[i], nodes[i + 1]);
        above.push_back(nodes[i]);
      }
      nodes = above;
    }
    if (sum.empty())
      sum = nodes.front();
    else
      add(sum, nodes.front());
  }
  return sum;
}

struct Case {
  int hosts = 1;
  int local = 1;
  std::int64_t lanes = 1;  // of a rank, per round
  std::int64_t rounds = 1;
  offload::SumCodec codec = offload::SumCodec::kFp32;
};

// What ranks sent in all.
struct Sent {
  std::uint64_t to_hosts_bytes = 0;
  std::uint64_t in_host_bytes = 0;
};

class Reducing {
 public:
  explicit Reducing(const Case& it) : it_(it) {
    const int lanes = static_cast<int>(it.lanes) * world();
    std::mt19937 random(7);
    std::uniform_real_distribution<float> any(-1, 1);
    rounds_.assign(static_cast<std::size_t>(it.rounds), std::vector<Values>());
    for (std::vector<Values>& round : rounds_) {
      for (int lane = 0; lane < lanes; ++lane) {
        Values& values = round.emplace_back(gathered());
        for (std::uint64_t i = 0; i < kElements; ++i) values[i] = any(random);
      }
    }
  }

  int world() const { return it_.hosts * it_.local; }
  std::uint64_t gathered() const { return offload::gathered_elements(kElements, world()); }
  offload::SumOrder order_of(const offload::RankPart& part) const {
    return offload::SumOrder({.micro_batches = it_.lanes * it_.rounds,
                              .lanes = it_.lanes,
                              .rounds = it_.rounds,
                              .ranks = part,
                              .codec = it_.codec});
  }

  // All ranks' shards, one after the other. `flat`: all ranks exchange at once.
  Values reduced(bool flat, Sent& sent) {
    std::vector<RankPlace> places;
    for (int rank = 0; rank < world(); ++rank)
      places.push_back({"host" + std::to_string(rank / it_.local), rank % it_.local});
    Values all(gathered());
    std::mutex mutex;
    const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
      CountingCommunicator counting(link);
      offload::RankPart part = link.topology().part(rank);
      if (flat) part.hosts = 1;
      std::vector<Values> roots = roots_of(part);
      const std::vector<float*> pointers = pointers_to(roots);
      RankReduction reduction({.part = part, .link = &counting}, order_of(part), kElements);
      const auto shard = reduction.reduce(pointers, gathered());
      const std::scoped_lock lock(mutex);
      sent.to_hosts_bytes += counting.to_hosts_bytes;
      sent.in_host_bytes += counting.in_host_bytes;
      EXPECT_TRUE(shard.ok()) << shard.error().message();
      if (shard.ok())
        std::copy(shard->begin(), shard->end(),
                  all.begin() + rank * static_cast<std::ptrdiff_t>(shard->size()));
    });
    for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
    return all;
  }

  Values expected() const { return definition(rounds_); }

 private:
  // Adds them up like a sink; each micro-batch is a lane.
  std::vector<Values> roots_of(const offload::RankPart& part) const {
    const offload::SumOrder order = order_of(part);
    std::vector<Values> sums;
    for (std::int64_t lane = 0; lane < it_.lanes * it_.rounds; ++lane) {
      const auto round = static_cast<std::size_t>(lane / it_.lanes);
      const auto in_round = static_cast<std::size_t>(part.rank * it_.lanes + lane % it_.lanes);
      sums.push_back(rounds_[round][in_round]);
      for (int fold = 0; fold < order.folds_after(lane); ++fold) {
        add(sums[sums.size() - 2], sums.back());
        sums.pop_back();
      }
    }
    return sums;
  }
  static std::vector<float*> pointers_to(std::vector<Values>& sums) {
    std::vector<float*> pointers;
    for (Values& sum : sums) pointers.push_back(sum.data());
    return pointers;
  }

  const Case it_;
  std::vector<std::vector<Values>> rounds_;  // each lane's sum
};

TEST(RankReduction, AddsInTheOrderOfLanesOnAnyHostsAndSendsTheUnitOncePerHost) {
  for (const Case& it : {Case{.hosts = 2, .local = 2}, Case{.hosts = 2, .local = 3},
                         Case{.hosts = 3, .local = 2, .lanes = 3}, Case{.hosts = 4, .local = 2},
                         Case{.hosts = 2, .local = 4, .lanes = 5, .rounds = 3},
                         Case{.hosts = 2, .local = 1, .lanes = 2},
                         Case{.hosts = 1, .local = 4, .lanes = 3, .rounds = 2}}) {
    SCOPED_TRACE(std::to_string(it.hosts) + " hosts of " + std::to_string(it.local) + " ranks of " +
                 std::to_string(it.lanes) + " lanes");
    Reducing reducing(it);
    const Values expected = reducing.expected();
    Sent by_host;
    Sent flat;
    EXPECT_EQ(reducing.reduced(false, by_host), expected);
    EXPECT_EQ(reducing.reduced(true, flat), expected);
    const offload::Topology topology{.world = reducing.world(), .local_world = it.local};
    const offload::SumOrder order = reducing.order_of(topology.part(0));
    const auto hosts = static_cast<std::uint64_t>(it.hosts);
    const std::uint64_t unit_bytes = reducing.gathered() * sizeof(float);
    // Each host sends the other hosts' parts of each of its sums.
    const auto sums = static_cast<std::uint64_t>(order.exchanges());
    const std::uint64_t to_hosts = unit_bytes * (hosts - 1);
    EXPECT_EQ(flat.to_hosts_bytes, to_hosts * static_cast<std::uint64_t>(it.local) * sums);
    if (!topology.adds_by_host()) continue;
    EXPECT_EQ(by_host.to_hosts_bytes,
              to_hosts * static_cast<std::uint64_t>(order.host_exchanges()));
    EXPECT_EQ(by_host.in_host_bytes,
              unit_bytes * hosts * static_cast<std::uint64_t>(it.local - 1) * sums);
    EXPECT_LT(by_host.to_hosts_bytes, flat.to_hosts_bytes);
  }
}

// Each hop rounds what it sends, its own part too, to half a step of the largest number.
TEST(RankReduction, QuantisedSendsFewerBytesInBothHopsAndIsAsGoodAsItsSteps) {
  for (const auto codec : {offload::SumCodec::kInt8, offload::SumCodec::kInt4}) {
    Case it{.hosts = 2, .local = 2, .lanes = 3, .rounds = 2};
    Reducing plain(it);
    Sent sent;
    const Values expected = plain.reduced(false, sent);
    it.codec = codec;
    Reducing quantised(it);
    Sent less;
    const Values got = quantised.reduced(false, less);
    const std::uint64_t full = encoded_sum_bytes(offload::SumCodec::kFp32, 128);
    const std::uint64_t coded = encoded_sum_bytes(codec, 128);
    EXPECT_EQ(less.to_hosts_bytes * full, sent.to_hosts_bytes * coded);
    EXPECT_EQ(less.in_host_bytes * full, sent.in_host_bytes * coded);
    // All lanes are at most 1; they cross in sums of up to their number, twice.
    const auto lanes = static_cast<float>(it.lanes * it.rounds * plain.world());
    const float most = lanes / offload::most_code(codec);
    double squares = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - expected[i]), most) << i;
      squares += (got[i] - expected[i]) * (got[i] - expected[i]);
    }
    EXPECT_GT(squares, 0);
    Sent again;
    EXPECT_EQ(quantised.reduced(false, again), got);
  }
}

TEST(RankReduction, OfIrregularHostsExchangesBetweenAllRanks) {
  const auto places_of = [](const std::string& hosts) {
    std::vector<RankPlace> places;
    for (const char host : hosts) {
      const auto before = std::count_if(places.begin(), places.end(), [&](const RankPlace& place) {
        return place.host == std::string(1, host);
      });
      places.push_back({std::string(1, host), static_cast<int>(before)});
    }
    return places;
  };
  for (const char* hosts : {"aab", "abb", "abab", "aabc", "abba", "aabbb", "abbccc", "aabbc"}) {
    const std::vector<RankPlace> places = places_of(hosts);
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      const auto topology = topology_of(places, static_cast<int>(rank));
      EXPECT_FALSE(topology.is_regular) << hosts << " of rank " << rank;
      EXPECT_EQ(topology.part(static_cast<int>(rank)).hosts, 1);
    }
  }
  for (const char* hosts : {"aabb", "aaabbb", "aabbccdd", "ab", "aaaa", "bbaa"}) {
    const std::vector<RankPlace> places = places_of(hosts);
    for (std::size_t rank = 0; rank < places.size(); ++rank)
      EXPECT_TRUE(topology_of(places, static_cast<int>(rank)).is_regular) << hosts;
  }
}

}  // namespace
}  // namespace sluice::engine
