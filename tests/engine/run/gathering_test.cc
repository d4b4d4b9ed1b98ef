// Gathers in 8 bits, and copies on hosts: their bits, and the bytes that cross between hosts. Ranks
// are threads, which say that they are on several hosts.
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aio/split_mix.h"
#include "engine/runtime/resources.h"
#include "tests/engine/comm/forwarding_communicator.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using Words = std::vector<std::string>;

constexpr int kLanes = 4;
constexpr int kMicroBatches = 8;

struct Hosts {
  int hosts = 1;
  int local = 1;

  int world() const { return hosts * local; }
  std::string text() const { return std::to_string(hosts) + "x" + std::to_string(local); }
};

// Counts the bytes that ranks receive by gathers of parameters, in each group.
class GatherCounter final : public ForwardingCommunicator {
 public:
  struct Counts {
    std::array<std::atomic<std::uint64_t>, kProcessGroups> bytes{};
    std::uint64_t of(ProcessGroup group) const { return bytes[static_cast<std::size_t>(group)]; }
  };
  // Counts gathers of at least so many bytes: figures and texts are smaller.
  GatherCounter(Communicator& inner, Counts& counts, std::uint64_t least = 8192)
      : ForwardingCommunicator(inner), counts_(counts), least_(least) {}

 private:
  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    if (all.size() >= least_ && rank(ProcessGroup::kWorld) == 0)
      counts_.bytes[static_cast<std::size_t>(options.group)] += all.size();
    return inner().all_gather(mine, all, options);
  }

  Counts& counts_;
  const std::uint64_t least_;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> validation;
  std::vector<bool> skipped;
  std::vector<float> masters;

  bool operator==(const Outcome&) const = default;
};

// Evaluates before the first step, between steps and at the end.
Outcome train(TrainingRun& run, int steps) {
  Outcome outcome;
  outcome.validation.push_back(run.evaluate());
  for (int i = 0; i < steps; ++i) {
    const StepOutcome step = run.step();
    outcome.losses.push_back(step.loss);
    outcome.norms.push_back(step.grad_norm);
    outcome.skipped.push_back(step.skipped);
    if (i % 2 == 0) outcome.validation.push_back(run.evaluate());
  }
  outcome.masters = masters_of(run);
  return outcome;
}

using Lead = std::function<void(TrainingRun&)>;

void on_hosts(const Hosts& hosts, const Words& overrides, const Lead& lead,
              GatherCounter::Counts& counts) {
  Words all = {"run.device=cpu", "run.lanes=" + std::to_string(kLanes)};
  all.insert(all.end(), overrides.begin(), overrides.end());
  all.push_back("gradient_accumulation_steps=" + std::to_string(kMicroBatches / hosts.world()));
  const SmallRun small(all);
  if (hosts.world() == 1) {
    lead(*small.start());
    return;
  }
  std::vector<RankPlace> places;
  for (int rank = 0; rank < hosts.world(); ++rank)
    places.push_back(
        {.host = "host" + std::to_string(rank / hosts.local), .local_rank = rank % hosts.local});
  const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
    GatherCounter counting(link, counts);
    try {
      const auto run = small.start({.ranks = counting.topology().part(rank)}, counting);
      if (rank == 0)
        lead(*run);
      else
        EXPECT_OK(run->follow());
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
      link.abort(error.what());
    }
  });
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
}

Outcome train_on(const Hosts& hosts, const Words& overrides, int steps = 4) {
  Outcome outcome;
  GatherCounter::Counts counts;
  on_hosts(
      hosts, overrides, [&](TrainingRun& run) { outcome = train(run, steps); }, counts);
  return outcome;
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kInt8 = {"communication.weights=int8"};
const Words kCopies = {"communication.host_copy=ram"};
const Words kOnNvme = {"zero_optimization.offload_optimizer.device=nvme",
                       "zero_optimization.offload_param.device=nvme",
                       "zero_optimization.stage3_param_persistence_threshold=0"};
const Words kWaves = {"placement.wave_micro_batches=1"};

struct Variant {
  const char* name;
  Words overrides;
};

class Gathering : public testing::TestWithParam<Variant> {};

TEST_P(Gathering, ChangesNoBitByRanksOrHosts) {
  const Words& overrides = GetParam().overrides;
  const Outcome one = train_on({1, 1}, overrides);
  ASSERT_FALSE(one.masters.empty());
  for (const Hosts& hosts : {Hosts{1, 2}, Hosts{2, 1}, Hosts{2, 2}, Hosts{4, 1}, Hosts{1, 4}}) {
    EXPECT_EQ(train_on(hosts, overrides), one) << hosts.text();
    EXPECT_EQ(train_on(hosts, overrides + kCopies), one) << hosts.text() << " with copies";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, Gathering,
    testing::Values(Variant{"full", {}}, Variant{"int8", kInt8},
                    Variant{"int8OnNvme", kInt8 + kOnNvme}, Variant{"int8Waves", kInt8 + kWaves},
                    Variant{"int8Fp32", kInt8 + Words{"bf16.enabled=false"}},
                    // The first steps overflow, and are skipped.
                    Variant{"int8Fp16",
                            kInt8 + Words{"bf16.enabled=false", "fp16.enabled=true",
                                          "fp16.initial_scale_power=26", "fp16.hysteresis=1"}},
                    Variant{"tied", of_llama(kInt8 + Words{"model.tied_head=on"})},
                    Variant{"experts", of_experts(kInt8)}, Variant{"adapters", of_adapters(kInt8)},
                    Variant{"adaptersNf4", of_adapters(kInt8 + Words{"recipe.lora.base_bits=4"})}),
    [](const auto& name) { return std::string(name.param.name); });

// Other weights than without, and close to them.
TEST(SentWeightsInt8, AreWhatARunComputesWith) {
  const Outcome full = train_on({1, 1}, {});
  const Outcome int8 = train_on({1, 1}, kInt8);
  EXPECT_NE(int8.losses, full.losses);
  for (std::size_t i = 0; i < full.losses.size(); ++i)
    EXPECT_NEAR(int8.losses[i], full.losses[i], 0.05) << "step " << i;
}

// On one GPU: wherever parameters and state are, shards have places of their own.
TEST(SentWeightsInt8, HaveTheSameBitsInEveryPlaceOfAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use in this machine";
  const auto trained = [](const Words& places) {
    const SmallRun small(kInt8 + Words{"run.device=cuda"} + places);
    return train(*small.start(), 4);
  };
  const auto on = [](const std::string& params, const std::string& state) {
    return Words{"zero_optimization.offload_param.device=" + params,
                 "zero_optimization.offload_optimizer.device=" + state};
  };
  const Outcome expected = trained(on("cpu", "cpu"));
  EXPECT_EQ(trained(on("none", "none")), expected);
  EXPECT_EQ(trained(on("none", "cpu")), expected);
  EXPECT_EQ(trained(kOnNvme), expected);
  EXPECT_EQ(trained(kWaves), expected);
  EXPECT_EQ(trained({"zero_optimization.offload_optimizer.device=auto",
                     R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})"}),
            expected);
}

// The base is the same as one that is stored in 8 bits.
TEST(SentWeightsInt8, OfABaseAreThoseOfBaseBits8) {
  EXPECT_EQ(train_on({1, 1}, of_adapters(kInt8)),
            train_on({1, 1}, of_adapters({"recipe.lora.base_bits=8"})));
  EXPECT_EQ(train_on({1, 1}, of_adapters({"zero_optimization.zero_quantized_nontrainable_weights="
                                          "true"})),
            train_on({1, 1}, of_adapters({"recipe.lora.base_bits=8"})));
}

TEST(Gathering, ChangesNoBitInRandomCombinations) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  aio::SplitMix random(seed);
  for (int round = 0; round < 4 && !testing::Test::HasFailure(); ++round) {
    Words overrides;
    const auto sometimes = [&](const Words& words) {
      if (random.below(2) == 0) overrides = overrides + words;
    };
    sometimes(kInt8);
    sometimes(kWaves);
    sometimes(kOnNvme);
    if (random.below(3) == 0)
      overrides = of_adapters(overrides);
    else
      sometimes({"bf16.enabled=false"});
    const Hosts hosts = std::array{Hosts{2, 1}, Hosts{2, 2}, Hosts{4, 1}}[random.below(3)];
    SCOPED_TRACE(hosts.text() + testing::PrintToString(overrides));
    EXPECT_EQ(train_on(hosts, overrides + kCopies), train_on({1, 1}, overrides));
  }
}

// One step that is applied and several that are skipped, in either order.
TEST(Gathering, KeepsCopiesOverSkippedSteps) {
  const Words skips = {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=32",
                       "fp16.hysteresis=1", "fp16.loss_scale_window=2"};
  constexpr int kSteps = 30;
  const Outcome one = train_on({1, 1}, skips, kSteps);
  EXPECT_THAT(one.skipped, testing::Contains(true));
  EXPECT_THAT(one.skipped, testing::Contains(false));
  EXPECT_EQ(train_on({2, 2}, skips + kCopies, kSteps), one);
}

// A rank's parts of a run whose parameters are all `value` in the first unit it asks for.
class ValuesOfUnits {
 public:
  explicit ValuesOfUnits(Resources& parts) : parts_(parts) {}

  // All masters, as loading a checkpoint sets them.
  void set(float value) const {
    EXPECT_OK(parts_.state().set(
        [value](const ParameterSpec&, const offload::StateSlice& to) -> Status {
          std::fill(to.master().begin(), to.master().end(), value);
          return {};
        },
        offload::Calls::kInOrder, {}));
  }
  // One unit's, as a script changes them.
  void change(int unit, float value) const {
    EXPECT_OK(parts_.state().amend(
        std::array{unit},
        [value](const ParameterSpec&, const offload::StateSlice& state) -> Status {
          std::fill(state.master().begin(), state.master().end(), value);
          return {};
        }));
  }
  // What passes would compute with; a collective.
  float of(int unit) const {
    auto views = parts_.parameters().units().acquire(unit);
    EXPECT_OK(views);
    const at::Tensor parameter = (**views)[0];
    EXPECT_TRUE(at::equal(parameter, at::full_like(parameter, parameter.flatten()[0].item())));
    const auto value = parameter.flatten()[0].item<float>();
    parts_.parameters().units().release(unit);
    return value;
  }

 private:
  Resources& parts_;
};

class CopiesOnHosts : public testing::TestWithParam<Words> {};

// A checkpoint that is loaded and a parameter that a script changes reach every rank, although
// hosts have copies.
TEST_P(CopiesOnHosts, AreNeverStale) {
  const SmallRun small(GetParam() + kCopies + Words{"run.device=cpu", "run.lanes=4"});
  const std::vector<RankPlace> places = {{.host = "a", .local_rank = 0},
                                         {.host = "a", .local_rank = 1},
                                         {.host = "b", .local_rank = 0},
                                         {.host = "b", .local_rank = 1}};
  GatherCounter::Counts counts;
  const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
    GatherCounter counting(link, counts, /*least=*/0);
    const config::Config config = small.config(4);
    const ModelLayout model = configured_layout(config, /*on_gpu=*/false);
    auto plan = plan_memory(config, model, {.ranks = counting.topology().part(rank)});
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    auto parts = Resources::create(config, *plan, model, {.link = &counting});
    ASSERT_TRUE(parts.ok()) << parts.error().message();
    const ValuesOfUnits units(**parts);
    const auto sent = [&] { return counts.of(ProcessGroup::kWorld); };
    units.set(0.5F);
    EXPECT_EQ(units.of(1), 0.5F);
    const std::uint64_t before = sent();
    EXPECT_EQ(units.of(1), 0.5F);
    EXPECT_TRUE(rank != 0 || sent() == before) << "the host has a copy";
    units.set(2.0F);
    EXPECT_EQ(units.of(1), 2.0F);
    EXPECT_EQ(units.of(2), 2.0F);
    units.change(1, -4.0F);
    EXPECT_EQ(units.of(1), -4.0F);
    EXPECT_EQ(units.of(1), -4.0F);
    EXPECT_EQ(units.of(2), 2.0F);
  });
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
}

INSTANTIATE_TEST_SUITE_P(Cpu, CopiesOnHosts, testing::Values(Words{}, kInt8, kInt8 + kOnNvme));

// Bytes of gathers in a step, over the bytes of the parameters.
struct Gathered {
  double world = 0;
  double node = 0;
};
Gathered gathered_in_a_step(const Words& overrides) {
  const Words larger = {"model.hidden=128", "model.layers=4", "model.heads=4", "model.vocab=512"};
  Gathered got;
  GatherCounter::Counts counts;
  on_hosts(
      {2, 2}, larger + overrides,
      [&](TrainingRun& run) {
        run.step();
        const auto before =
            std::array{counts.of(ProcessGroup::kWorld), counts.of(ProcessGroup::kNode)};
        run.step();
        const auto bytes = 2.0 * static_cast<double>(run.model().parameter_elements());
        got.world = static_cast<double>(counts.of(ProcessGroup::kWorld) - before.front()) / bytes;
        got.node = static_cast<double>(counts.of(ProcessGroup::kNode) - before.back()) / bytes;
      },
      counts);
  return got;
}

// The published bytes: M for each of forward and backward, half of it in 8 bits, and none over the
// network in backward where hosts have copies.
TEST(Gathering, SendsWhatIsPublished) {
  constexpr double kNear = 0.12;  // of padding, and of the head, which is needed once
  const Gathered full = gathered_in_a_step({});
  EXPECT_NEAR(full.world, 2, 2 * kNear);
  EXPECT_EQ(full.node, 0);
  const Gathered int8 = gathered_in_a_step(kInt8);
  EXPECT_NEAR(int8.world / full.world, 0.516, 0.02);
  EXPECT_EQ(int8.node, 0);
  const Gathered copies = gathered_in_a_step(kCopies);
  EXPECT_NEAR(copies.world, 1, kNear);
  EXPECT_NEAR(copies.world + copies.node, full.world, 1e-9);
  const Gathered both = gathered_in_a_step(kInt8 + kCopies);
  EXPECT_NEAR(both.world / copies.world, 0.516, 0.02);
  EXPECT_NEAR(both.world + both.node, int8.world, 1e-9);
  // Waves gather again for each of their passes; with copies they do so on their host.
  const Gathered waves = gathered_in_a_step(kWaves + kCopies);
  EXPECT_NEAR(waves.world, copies.world, 1e-9);
  EXPECT_GT(waves.node, 2 * copies.node);
}

// A frozen base is gathered over the network in the first step, and never again.
TEST(Gathering, SendsAFrozenBaseOnce) {
  const Gathered copies =
      gathered_in_a_step({"recipe.lora.rank=2", "model.family=llama", "model.architecture=qwen3",
                          "model.kv_heads=1", "model.head_dim=32", "model.ffn_multiplier=3",
                          "model.preset=custom", "communication.host_copy=auto"});
  EXPECT_LT(copies.world, 0.1);
  EXPECT_GT(copies.node, 1);
}

}  // namespace
}  // namespace sluice::engine
