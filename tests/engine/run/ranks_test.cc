// Several ranks on this machine, as threads: with the same lanes they give the same bits as one
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/run_checkpoints.h"
#include "engine/step/rank_reduction.h"
#include "engine/step/train_error.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::vector<std::optional<double>> balance_losses;
  std::vector<std::int64_t> rows;  // of experts
  double norm = 0;
  double validation = 0;
  std::vector<float> masters;
  std::vector<float> saved;  // masters and moments, as in a checkpoint
  std::vector<UnitHashes> hashes;

  bool operator==(const Outcome&) const = default;
};

constexpr int kMicroBatches = 4;
constexpr int kSteps = 4;

// Saves the state and reads it back. `meanwhile`, if any: what the run does during the save.
std::vector<float> saved_state(TrainingRun& run, std::string* path = nullptr,
                               const std::function<void(RunCheckpoints&)>& meanwhile = {}) {
  auto checkpoints = RunCheckpoints::create(
      run, *run.drives().saves,
      {.directory = run.config().run.dir, .background = meanwhile != nullptr});
  EXPECT_OK(checkpoints);
  EXPECT_OK((*checkpoints)->save({}));
  if (meanwhile) meanwhile(**checkpoints);
  (*checkpoints)->wait();
  const auto saved = (*checkpoints)->finished();
  EXPECT_OK(saved.at(0).status);
  auto reader = CheckpointReader::open(*run.drives().reads, saved.at(0).path, {});
  EXPECT_OK(reader);
  if (!reader.ok()) return {};
  EXPECT_EQ((*reader)->manifest().total_bytes(), saved.at(0).bytes);
  if (path != nullptr) *path = saved.at(0).path;
  std::vector<float> all;
  for (const TensorInfo& parameter : (*reader)->parameters()) {
    const std::size_t before = all.size();
    all.resize(before + offload::kStateFields.size() * parameter.elements);
    EXPECT_OK((*reader)->read(parameter.name,
                              offload::state_slice_in(std::span(all).subspan(before), 0,
                                                      parameter.elements, parameter.elements)));
  }
  return all;
}

// A step of four micro-batches, on this thread's rank.
Outcome train_rank(TrainingRun& run) {
  Outcome outcome;
  for (int i = 0; i < kSteps; ++i) {
    const StepOutcome step = run.step();
    outcome.losses.push_back(step.loss);
    outcome.balance_losses.push_back(step.experts.balance_loss);
    outcome.rows.insert(outcome.rows.end(), step.experts.rows.begin(), step.experts.rows.end());
    outcome.norm = step.grad_norm;
    const std::vector<UnitHashes>& hashes = run.trainer().unit_hashes();
    outcome.hashes.insert(outcome.hashes.end(), hashes.begin(), hashes.end());
  }
  outcome.validation = run.evaluate();
  outcome.masters = masters_of(run);
  return outcome;
}

// How a rank begins, and what the first one does afterwards.
struct RankWork {
  std::function<std::unique_ptr<TrainingRun>(const SmallRun&, const offload::RankPart&,
                                             Communicator&)>
      begin;
  std::function<void(TrainingRun&)> lead;
};

// A lane for each of four micro-batches, unless `overrides` set other lanes.
std::vector<std::string> on_ranks(int world, std::vector<std::string> overrides,
                                  int micro_batches = kMicroBatches) {
  overrides.insert(overrides.begin(), "run.lanes=" + std::to_string(kMicroBatches));
  overrides.push_back("gradient_accumulation_steps=" + std::to_string(micro_batches / world));
  return overrides;
}

// How many ranks there are, and on how many hosts.
struct Spread {
  int world = 1;
  int hosts = 1;
};

void work_on(const Spread& spread, const SmallRun& small, const RankWork& work) {
  const int world = spread.world;
  if (world == 1) {
    work.lead(*work.begin(small, {}, single_process()));
    return;
  }
  std::vector<RankPlace> places;
  const int of_host = world / spread.hosts;
  for (int rank = 0; rank < world; ++rank)
    places.push_back(
        {.host = "host" + std::to_string(rank / of_host), .local_rank = rank % of_host});
  const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
    try {
      const auto run = work.begin(small, link.topology().part(rank), link);
      if (rank == 0) {
        work.lead(*run);
      } else {
        EXPECT_OK(run->follow());
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
      link.abort(error.what());
    }
  });
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
}

// Resumes their checkpoint with other numbers of ranks, and saves again.
void expect_resumed(const std::string& path, int begun, const std::vector<std::string>& overrides,
                    const std::vector<float>& expected) {
  const auto begin = [&](const SmallRun& small, const offload::RankPart& part, Communicator& link) {
    auto run = small.make({.ranks = part}, link);
    auto reader = CheckpointReader::open(*run->drives().reads, path, {});
    if (!reader.ok()) throw std::runtime_error(reader.error().message());
    if (const Status resumed = run->resume(**reader, {}); !resumed.ok())
      throw std::runtime_error(resumed.error().message());
    return run;
  };
  for (const int world : {1, 2, 4}) {
    if (world == begun) continue;
    const SmallRun small(on_ranks(world, overrides));
    const auto compare = [&](TrainingRun& run) {
      EXPECT_EQ(saved_state(run), expected) << begun << " to " << world;
    };
    work_on({.world = world}, small, {.begin = begin, .lead = compare});
  }
}

Outcome train_on(const Spread& spread, const std::vector<std::string>& overrides, bool resumes,
                 int micro_batches = kMicroBatches) {
  const SmallRun small(on_ranks(spread.world, overrides, micro_batches));
  Outcome outcome;
  std::string path;
  const auto begin = [](const SmallRun& of, const offload::RankPart& part, Communicator& link) {
    return of.start({.ranks = part}, link);
  };
  work_on(spread, small, {.begin = begin, .lead = [&](TrainingRun& run) {
                            outcome = train_rank(run);
                            outcome.saved = saved_state(run, &path);
                          }});
  if (resumes) expect_resumed(path, spread.world, overrides, outcome.saved);
  return outcome;
}

// The copies are those of one moment, whatever the run does while they are written.
TEST(RanksThatSaveInTheBackground, SaveWhatTheyHadAndTrainOnWithTheSameBits) {
  const auto trained = [](int world, const std::vector<std::string>& overrides, bool background) {
    const SmallRun small(on_ranks(world, overrides));
    const auto begin = [](const SmallRun& of, const offload::RankPart& part, Communicator& link) {
      return of.start({.ranks = part}, link);
    };
    std::vector<std::vector<float>> states;
    const auto lead = [&](TrainingRun& run) {
      run.step();
      states.push_back(saved_state(run));
      const std::function<void(RunCheckpoints&)> two_steps = [&](RunCheckpoints& checkpoints) {
        EXPECT_TRUE(checkpoints.finished().empty());  // no step has ended since
        run.step();
        run.step();
      };
      if (background) {
        states.push_back(saved_state(run, nullptr, two_steps));
        states.push_back(saved_state(run, nullptr, two_steps));
      } else {
        for (int i = 0; i < 4; ++i) {
          if (i % 2 == 0) states.push_back(saved_state(run));
          run.step();
        }
      }
      states.push_back(saved_state(run));
    };
    work_on({.world = world}, small, {.begin = begin, .lead = lead});
    return states;
  };
  const std::vector<std::string> on_nvme = {
      "zero_optimization.offload_optimizer.device=nvme",
      "zero_optimization.offload_param.device=nvme", "optimizer.params.moments=bf16",
      "zero_optimization.stage3_param_persistence_threshold=0"};
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>(), on_nvme, of_adapters()}) {
    const auto expected = trained(1, overrides, false);
    ASSERT_EQ(expected.size(), 4U);
    EXPECT_EQ(expected[0], expected[1]);
    EXPECT_NE(expected[1], expected[2]);
    for (const int world : {2, 4}) EXPECT_EQ(trained(world, overrides, true), expected) << world;
  }
}

// The step fails on all ranks at once, which can still end the save.
TEST(RanksThatSaveInTheBackground, KeepASaveThatWasUnderWayWhenTheGradientIsNotFinite) {
  const SmallRun small(on_ranks(2, {"scheduler.params.warmup_max_lr=1e38"}));
  const std::vector<RankPlace> places = {{"here", 0}, {"here", 1}};
  std::vector<std::string> ends(2);
  in_threads(options_of(places), [&](int rank, Communicator& link) {
    const auto run = small.start({.ranks = {rank, 2}}, link);
    try {
      if (rank == 1) {
        EXPECT_OK(run->follow());
        return;
      }
      run->step();
      auto checkpoints = RunCheckpoints::create(
          *run, *run->drives().saves, {.directory = run->config().run.dir, .background = true});
      EXPECT_OK(checkpoints);
      EXPECT_OK((*checkpoints)->save({}));
      EXPECT_THROW(for (int i = 0; i < 4; ++i) run->step(), NonFiniteGradient);
      (*checkpoints)->wait();
      const auto saved = (*checkpoints)->finished();
      EXPECT_OK(saved.at(0).status);
      ends[0] = "saved";
    } catch (const NonFiniteGradient& error) {
      ends[1] = error.what();
    }
  });
  EXPECT_EQ(ends[0], "saved");
  EXPECT_THAT(ends[1], testing::HasSubstr("not finite"));
}

struct RankVariant {
  const char* name;
  std::vector<std::string> overrides;
  bool resumes = false;
  std::vector<int> worlds = {2, 4};
  int micro_batches = kMicroBatches;
};

class RanksIn : public testing::TestWithParam<RankVariant> {};

TEST_P(RanksIn, ChangeNoBit) {
  const bool resumes = GetParam().resumes;
  const int micro_batches = GetParam().micro_batches;
  const Outcome one = train_on({}, GetParam().overrides, resumes, micro_batches);
  ASSERT_FALSE(one.masters.empty());
  ASSERT_EQ(one.saved.size(), 3 * one.masters.size());
  for (const int world : GetParam().worlds) {
    EXPECT_EQ(train_on({.world = world}, GetParam().overrides, resumes, micro_batches), one)
        << world << " ranks";
    for (int hosts = 2; hosts < world; ++hosts) {
      if (world % hosts != 0) continue;
      EXPECT_EQ(
          train_on({.world = world, .hosts = hosts}, GetParam().overrides, false, micro_batches),
          one)
          << world << " ranks on " << hosts << " hosts";
    }
  }
}

std::vector<RankVariant> rank_variants() {
  const std::vector<std::string> on_nvme = {
      "zero_optimization.offload_optimizer.device=nvme",
      "zero_optimization.offload_param.device=nvme",
      "zero_optimization.stage3_param_persistence_threshold=0",
      "zero_optimization.sub_group_size=1000", "placement.unit_inputs_to_nvme=on"};
  std::vector<std::string> int8_shards_on_nvme = on_nvme;
  int8_shards_on_nvme.emplace_back("zero_optimization.stage=3");
  int8_shards_on_nvme.emplace_back("recipe.lora.base_bits=8");
  std::vector<std::string> nf4_shards_on_nvme = on_nvme;
  nf4_shards_on_nvme.emplace_back("zero_optimization.stage=3");
  nf4_shards_on_nvme.emplace_back("recipe.lora.base_bits=4");
  nf4_shards_on_nvme.emplace_back("recipe.lora.double_quant=true");
  std::vector<std::string> hashed_on_nvme = on_nvme;
  hashed_on_nvme.emplace_back("run.hash_units=true");
  hashed_on_nvme.emplace_back("bf16.enabled=false");
  return {
      {"bf16", {}},
      {"fp32", {"bf16.enabled=false"}, true},
      {"fp16", {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=8"}},
      {"bf16Moments", {"optimizer.params.moments=bf16"}, true},
      {"notOverlapped", {"placement.overlap_update=false"}},
      {"onNvme", on_nvme, true},
      {"groups", kInGroups},
      {"waves", {"placement.wave_micro_batches=1"}},
      {"hashed", {"run.hash_units=true"}},
      {"hashedFp32OnNvme", hashed_on_nvme},
      {"adapters", of_adapters({"run.hash_units=true"}), true},
      {"adaptersOnNvme", of_adapters(on_nvme)},
      {"adaptersBesideInt8",
       of_adapters({"recipe.lora.base_bits=8", "placement.wave_micro_batches=1"})},
      {"adaptersBesideShards", of_adapters({"zero_optimization.stage=3"}), true},
      {"adaptersBesideInt8ShardsOnNvme", of_adapters(int8_shards_on_nvme)},
      {"adaptersBesideNf4ShardsOnNvme", of_adapters(nf4_shards_on_nvme)},
      {"tiedAdapters", of_adapters({"model.tied_head=on"})},
      {"tiedAdaptersBesideShards",
       of_adapters({"model.tied_head=on", "zero_optimization.stage=3"})},
      {"adaptersBesideFp32Shards",
       of_adapters({"zero_optimization.stage=3", "bf16.enabled=false"})},
      {"experts", of_experts(), true},
      {"expertAdapters", of_expert_adapters(), true},
      {"expertsInWaves", of_experts({"placement.wave_micro_batches=1"}), false, {2, 4}, 8},
      {"twelveLanes", {"run.lanes=12"}, false, {2, 3, 4, 6}, 12},
      {"twelveLanesInWaves", {"run.lanes=12", "placement.wave_micro_batches=1"}, false, {2, 4}, 12},
      {"eightRanks", {"run.lanes=8"}, false, {8}, 8},
      {"roundsOfSix", {"run.lanes=6", "run.rounds=2"}, false, {6}, 12},
      {"sixLanesOfTwo", {"run.lanes=6"}, false, {2, 3}, 12},
      {"rounds", {"run.lanes=3", "run.rounds=2"}, false, {3}, 6},
      {"roundsInWaves",
       {"run.lanes=6", "run.rounds=2", "placement.wave_micro_batches=2"},
       false,
       {2},
       24}};
}

INSTANTIATE_TEST_SUITE_P(Cpu, RanksIn, testing::ValuesIn(rank_variants()),
                         [](const auto& name) { return std::string(name.param.name); });

TEST(RanksOnHosts, ChangeNoBitInRandomCombinations) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  const std::vector<RankVariant> variants = rank_variants();
  const std::vector<Spread> spreads = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};
  for (int round = 0; round < 5 && !HasFailure(); ++round) {
    const RankVariant variant = pick(variants);
    // These adapters have too few elements for a shard of each of more ranks.
    const bool is_tiny = std::string_view(variant.name).find("dapter") != std::string_view::npos;
    const Spread spread = is_tiny ? spreads.front() : pick(spreads);
    const int lanes = spread.world * pick(std::vector<int>{1, 2, 3});
    const int rounds = lanes > 12 ? 1 : pick(std::vector<int>{1, 2});
    std::vector<std::string> settings = variant.overrides;
    settings.push_back("run.lanes=" + std::to_string(lanes));
    settings.push_back("run.rounds=" + std::to_string(rounds));
    if (random() % 2 == 0) settings.emplace_back("placement.wave_micro_batches=1");
    const Outcome one = train_on({}, settings, false, lanes * rounds);
    EXPECT_EQ(train_on(spread, settings, false, lanes * rounds), one)
        << variant.name << ", " << lanes << " lanes, " << rounds << " rounds, " << spread.world
        << " ranks on " << spread.hosts << " hosts";
  }
}

// Gradients in 8 and 4 bits: other bits than in fp32, and on other ranks, but wherever the rank's
// part is placed.
TEST(QuantisedGradients, AreTheSameInWavesAndOnNvme) {
  constexpr int kOfAStep = 8;
  const Spread two_hosts{.world = 4, .hosts = 2};
  const Outcome plain = train_on(two_hosts, {}, false, kOfAStep);
  for (const std::string bits : {"int8", "int4"}) {
    SCOPED_TRACE(bits);
    const std::string asked = "communication.gradients=" + bits;
    const Outcome here = train_on(two_hosts, {asked}, true, kOfAStep);
    EXPECT_NE(here.masters, plain.masters);
    EXPECT_NEAR(here.losses.back(), plain.losses.back(), 0.05);
    EXPECT_NEAR(here.norm, plain.norm, 0.2 * plain.norm);
    EXPECT_EQ(train_on(two_hosts, {asked, "placement.wave_micro_batches=1"}, false, kOfAStep),
              here);
    EXPECT_EQ(train_on(two_hosts,
                       {asked, "zero_optimization.offload_optimizer.device=nvme",
                        "zero_optimization.offload_param.device=nvme",
                        "zero_optimization.sub_group_size=1000"},
                       false, kOfAStep),
              here);
    EXPECT_EQ(train_on({}, {asked}, false, kOfAStep), train_on({}, {}, false, kOfAStep))
        << "one rank sends nothing";
  }
}

}  // namespace
}  // namespace sluice::engine
