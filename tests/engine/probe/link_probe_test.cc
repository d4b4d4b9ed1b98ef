// Ranks that exchange host memory on this machine.
#include "engine/probe/link_probe.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "aio/clock.h"
#include "aio/units.h"
#include "engine/comm/nccl_communicator.h"
#include "engine/config/resolve.h"
#include "engine/probe/link_passes.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

std::vector<TcpOptions> two_ranks() {
  return options_of(std::vector<RankPlace>{{.host = "here"}, {.host = "here", .local_rank = 1}});
}

// Whether everything is done on a stream of the fake NCCL that moves host memory.
Result<bool> is_done(void* stream) {
  static void* const library = ::dlopen(SLUICE_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  using Done = int(void*);
  return reinterpret_cast<Done*>(::dlsym(library, "fake_nccl_stream_done"))(stream) != 0;
}

std::array<MeasuredLink, 2> on_two_ranks(const config::Config& config, const std::string& cache) {
  std::array<MeasuredLink, 2> found;
  const auto told = in_threads(two_ranks(), [&](int rank, Communicator& link) {
    const auto measured = probe_link(link, config, {.cache_path = cache, .unix_s = 1000});
    ASSERT_TRUE(measured.ok()) << measured.error().message();
    found[static_cast<std::size_t>(rank)] = *measured;
  });
  for (const Status& status : told) EXPECT_TRUE(status.ok());
  return found;
}

TEST(LinkProbe, MeasuresOnAllRanksAndKeepsItWithTheFirst) {
  const aio::TemporaryFolder folder;
  const std::string cache = folder.file("speeds.json");
  config::Sources sources;
  sources.run_file =
      config::Source{"test", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                  "model": {"preset": "gpt2-small"}, "data": {"train": ["train.bin"]},
                  "run": {"device": "cpu"}})"};
  const auto resolved = config::resolve(sources);
  ASSERT_TRUE(resolved.ok()) << resolved.error().message();
  const config::Config& config = resolved->config;
  const auto measured = on_two_ranks(config, cache);
  EXPECT_GT(measured[0].speeds.gather_bytes_per_s, 1e6);
  EXPECT_GT(measured[0].speeds.exchange_bytes_per_s, 1e6);
  EXPECT_GT(measured[0].speeds.latency_s, 0);
  EXPECT_EQ(measured[0].speeds.gather_bytes_per_s, measured[1].speeds.gather_bytes_per_s);
  EXPECT_FALSE(measured[0].when.cached);
  EXPECT_EQ(measured[0].key.of.at("ranks"), "2");
  EXPECT_EQ(measured[0].key.of.at("ranks of a host"), "2");
  const auto kept = on_two_ranks(config, cache);
  EXPECT_TRUE(kept[0].when.cached);
  EXPECT_EQ(kept[0].speeds.gather_bytes_per_s, measured[0].speeds.gather_bytes_per_s);
}

// Like between GPUs: with a stream, over a communicator that is created next to the host's.
TEST(LinkProbe, TimesWhatGoesByNcclOnAStream) {
  std::array<double, 2> rates{};
  const auto told = in_threads(two_ranks(), [&](int rank, Communicator& host) {
    const auto link =
        make_nccl_communicator(host, {.library = SLUICE_FAKE_NCCL, .stream_done = is_done});
    ASSERT_TRUE(link.ok()) << link.error().message();
    std::vector<std::byte> sent(8 * kMiB);
    std::vector<std::byte> received(sent.size());
    const SteadyClock clock;
    int stream = 0;
    const auto speeds =
        time_link(**link, {.sent = sent, .received = received, .stream = &stream}, clock);
    ASSERT_TRUE(speeds.ok()) << speeds.error().message();
    EXPECT_GT(speeds->exchange_bytes_per_s, 1e6);
    rates[static_cast<std::size_t>(rank)] = speeds->gather_bytes_per_s;
    EXPECT_TRUE(host.barrier().ok());
  });
  for (const Status& status : told) EXPECT_TRUE(status.ok());
  EXPECT_GT(rates[0], 1e6);
  EXPECT_EQ(rates[0], rates[1]);
}

}  // namespace
}  // namespace sluice::engine
