// A link with known speed, whose time passes accordingly.
#include "engine/probe/link_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aio/units.h"

namespace sluice::engine {
namespace {

constexpr int kWorld = 4;

class VirtualClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return static_cast<std::int64_t>(1e9 * now_s); }
  double now_s = 1;
};

// The first of four ranks; the others report the same as it does.
class KnownLink final : public Communicator {
 public:
  KnownLink(VirtualClock& clock, const offload::LinkSpeeds& speeds)
      : clock_(clock), speeds_(speeds) {}

  int rank(ProcessGroup /*group*/) const override { return 0; }
  int world_size(ProcessGroup /*group*/) const override { return kWorld; }
  offload::Topology topology() const override { return kRanks; }
  Status finish(void* /*stream*/) override {
    ++finished;
    return {};
  }
  void abort(std::string_view /*reason*/) noexcept override {}
  Status health() const override { return {}; }

  std::uint64_t most_bytes = 0;
  int finished = 0;

 private:
  static constexpr offload::Topology kRanks{.world = kWorld, .local_world = kWorld};

  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& /*options*/) override {
    if (all.size() >= kMiB / 64)
      clock_.now_s += offload::gather_s(speeds_, kRanks, static_cast<double>(all.size()));
    for (std::size_t rank = 0; rank < kWorld; ++rank)
      std::copy(mine.begin(), mine.end(),
                all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size()));
    most_bytes = std::max<std::uint64_t>(most_bytes, all.size());
    return {};
  }
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> /*received*/,
                       const CollectiveOptions& /*options*/) override {
    clock_.now_s += offload::exchange_s(speeds_, kRanks, static_cast<double>(sent.size()), 1);
    return {};
  }
  Status do_broadcast(std::span<std::byte> /*bytes*/, int /*root*/,
                      const CollectiveOptions& /*options*/) override {
    return {};
  }
  Status do_send_receive(const Messages& /*messages*/,
                         const CollectiveOptions& /*options*/) override {
    return {};
  }
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> /*ranks*/) override {
    return make_single_process_communicator();
  }
  Status do_barrier(ProcessGroup /*group*/) override { return {}; }

  VirtualClock& clock_;
  const offload::LinkSpeeds speeds_;
};

class LinkPassesTest : public testing::Test {
 protected:
  Result<offload::LinkSpeeds> timed(KnownLink& link, void* stream = nullptr) {
    return time_link(link, {.sent = sent_, .received = received_, .stream = stream}, clock_);
  }

  VirtualClock clock_;
  std::vector<std::byte> sent_ = std::vector<std::byte>(32 * kMiB);
  std::vector<std::byte> received_ = std::vector<std::byte>(32 * kMiB);
};

TEST_F(LinkPassesTest, FindTheRatesAndTheLatencyThatItHas) {
  KnownLink link(clock_,
                 {.gather_bytes_per_s = 2e9, .exchange_bytes_per_s = 1e9, .latency_s = 1e-3});
  const auto speeds = timed(link);
  ASSERT_TRUE(speeds.ok()) << speeds.error().message();
  EXPECT_NEAR(speeds->gather_bytes_per_s, 2e9, 0.02e9);
  EXPECT_NEAR(speeds->exchange_bytes_per_s, 1e9, 0.01e9);
  EXPECT_NEAR(speeds->latency_s, 1e-3, 0.1e-3);
  EXPECT_EQ(link.most_bytes, 32 * kMiB);
  EXPECT_EQ(link.finished, 0);
}

TEST_F(LinkPassesTest, StopAtASlowLink) {
  KnownLink link(clock_, {.gather_bytes_per_s = 5e6, .exchange_bytes_per_s = 5e6});
  const auto speeds = timed(link);
  ASSERT_TRUE(speeds.ok());
  EXPECT_NEAR(speeds->gather_bytes_per_s, 5e6, 0.2e6);
  EXPECT_EQ(link.most_bytes, 4 * kMiB);
}

TEST_F(LinkPassesTest, WaitForTheStream) {
  KnownLink link(clock_, {.gather_bytes_per_s = 1e9, .exchange_bytes_per_s = 1e9});
  int stream = 0;
  ASSERT_TRUE(timed(link, &stream).ok());
  EXPECT_GE(link.finished, 2 * 3 * 6);  // passes of two calls of three sizes
}

}  // namespace
}  // namespace sluice::engine
