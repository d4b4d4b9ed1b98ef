// Of ranks that exchange host memory on this machine.
#include "engine/probe/link_probe.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "engine/config/resolve.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace sluice::engine {
namespace {

std::array<MeasuredLink, 2> on_two_ranks(const config::Config& config, const std::string& cache) {
  std::array<MeasuredLink, 2> found;
  const auto told = in_threads(
      options_of(std::vector<RankPlace>{{.host = "here"}, {.host = "here", .local_rank = 1}}),
      [&](int rank, Communicator& link) {
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

}  // namespace
}  // namespace sluice::engine
