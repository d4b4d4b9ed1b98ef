// The project's central promise: where parameters and optimizer state are stored, how they are cut,
// and when they are updated, changes no bit of the weights.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr int kSteps = 8;

// All digits. A loss that overflowed in both runs, as in fp16 on some processors, is equal too.
std::vector<std::string> texts_of(const std::vector<double>& losses) {
  std::vector<std::string> texts;
  for (const double loss : losses) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%a", std::isnan(loss) ? std::abs(loss) : loss);
    texts.emplace_back(text.data());
  }
  return texts;
}

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
  std::vector<double> of_experts;  // balance losses and counts
};

Trained train_on(TrainingRun& run) {
  Trained trained;
  for (int i = 0; i < kSteps; ++i) {
    const StepOutcome outcome = run.step();
    trained.losses.push_back(outcome.loss);
    trained.of_experts.push_back(outcome.experts.balance_loss.value_or(0));
    for (const std::int64_t rows : outcome.experts.rows)
      trained.of_experts.push_back(static_cast<double>(rows));
  }
  trained.masters = masters_of(run);
  return trained;
}

Trained train(const std::vector<std::string>& overrides) {
  return train_on(*SmallRun(overrides).start());
}

void expect_equal(const Trained& expected, const Trained& got, const std::string& what) {
  ASSERT_EQ(expected.masters.size(), got.masters.size()) << what;
  EXPECT_EQ(0, std::memcmp(expected.masters.data(), got.masters.data(),
                           expected.masters.size() * sizeof(float)))
      << what << ": weights differ";
  EXPECT_EQ(texts_of(expected.losses), texts_of(got.losses)) << what;
  EXPECT_EQ(texts_of(expected.of_experts), texts_of(got.of_experts)) << what;
}

struct Variant {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"optimizer on NVMe", {"zero_optimization.offload_optimizer.device=nvme"}},
      {"all on NVMe",
       {"zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.offload_param.buffer_count=3"}},
      {"half of the optimizer on NVMe",
       {"zero_optimization.offload_optimizer.device=auto",
        R"(placement.optimizer_fractions={"gpu": 0, "cpu": 0.5, "nvme": 0.5})"}},
      {"updates not overlapped", {"placement.overlap_update=false"}},
      {"all on NVMe, not overlapped",
       {"zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "placement.overlap_update=false"}},
      {"small sub-groups", {"zero_optimization.sub_group_size=777"}},
      {"small sub-groups on NVMe",
       {"zero_optimization.sub_group_size=1000",
        "zero_optimization.offload_optimizer.device=nvme"}},
      {"large sub-groups", {"zero_optimization.sub_group_size=1e9"}},
      {"activations kept", {"placement.recompute=off"}},
      {"unit inputs on the host", {"placement.unit_inputs_to_cpu=on"}},
      {"unit inputs on NVMe", {"placement.unit_inputs_to_nvme=on"}},
      {"unit inputs on NVMe, activations kept",
       {"placement.unit_inputs_to_nvme=on", "placement.recompute=off"}},
      {"unit inputs on the host, activations kept",
       {"placement.unit_inputs_to_cpu=on", "placement.recompute=off"}},
      // Without a GPU its share is in RAM.
      {"all on the GPU",
       {"zero_optimization.offload_optimizer.device=none",
        "zero_optimization.offload_param.device=none"}},
      {"all on the GPU, not overlapped, activations kept",
       {"zero_optimization.offload_optimizer.device=none",
        "zero_optimization.offload_param.device=none", "placement.overlap_update=false",
        "placement.recompute=off"}},
      {"parameters on the GPU", {"zero_optimization.offload_param.device=none"}},
      {"a third on each tier",
       {"zero_optimization.offload_optimizer.device=auto", "zero_optimization.sub_group_size=1000",
        R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})"}},
      {"a third on each tier, parameters on NVMe",
       {"zero_optimization.offload_optimizer.device=auto",
        "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.sub_group_size=5000",
        R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})"}},
      {"a share of whole units on the GPU",
       {"zero_optimization.offload_optimizer.device=cpu",
        "zero_optimization.offload_optimizer.ratio=0.5", "zero_optimization.sub_group_size=1e9"}},
      {"one queue slot", {"aio.queue_depth=1"}},
      {"a tiny bucket, all on NVMe",
       {"zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.stage3_prefetch_bucket_size=1"}},
      {"hardly anything live",
       {"zero_optimization.stage3_max_live_parameters=1",
        "zero_optimization.stage3_max_reuse_distance=0"}},
      {"all is kept for reuse",
       {"zero_optimization.stage3_max_live_parameters=1e12",
        "zero_optimization.stage3_max_reuse_distance=1e12"}},
      {"two units ahead, all on NVMe",
       {"placement.prefetch_units=2", "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0"}},
      {"POSIX threads", {"aio.backend=posix", "zero_optimization.offload_optimizer.device=nvme"}},
  };
  return all;
}

class PlacementIn : public testing::TestWithParam<const char*> {};

// "bf16Llama", "fp16OfBf16Moments"
std::vector<std::string> overrides_of(const std::string& name) {
  std::vector<std::string> all;
  if (name.ends_with("Llama")) all = of_llama();
  if (name.ends_with("Adapters")) all = of_adapters();
  if (name.ends_with("Experts")) all = of_experts();
  if (name.ends_with("ExpertAdapters")) all = of_expert_adapters();
  if (name.ends_with("BesideInt8")) all = of_adapters({"recipe.lora.base_bits=8"});
  if (name.ends_with("BesideNf4")) all = of_adapters({"recipe.lora.base_bits=4"});
  if (name.ends_with("BesideNf4Double"))
    all = of_adapters({"recipe.lora.base_bits=4", "recipe.lora.double_quant=true"});
  if (name.find("Tied") != std::string::npos) all.emplace_back("model.tied_head=on");
  if (name.ends_with("InGroups")) all = kInGroups;
  if (name.find("OfBf16Moments") != std::string::npos)
    all.push_back("optimizer.params.moments=bf16");
  all.push_back(name.starts_with("bf16") ? "bf16.enabled=true" : "bf16.enabled=false");
  if (name.starts_with("fp16")) {
    all.push_back("fp16.enabled=true");
    all.push_back("fp16.initial_scale_power=12");
  }
  all.push_back("model.vocab=61");  // padded if there is a GPU
  return all;
}

TEST_P(PlacementIn, ChangesNoBitOfTheWeights) {
  const std::vector<std::string> base = overrides_of(GetParam());
  const Trained expected = train(base);
  // Adapters on an untrained model learn little.
  EXPECT_NE(expected.masters, masters_of(*SmallRun(base).start()));
  if (!SmallRun(base).config().lora.recipe().exists()) {
    EXPECT_LT(expected.losses.back(), expected.losses.front());
  }
  for (const Variant& variant : variants()) {
    std::vector<std::string> overrides = base;
    overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
    expect_equal(expected, train(overrides), variant.name);
  }
}

class WavesIn : public testing::TestWithParam<const char*> {};

// For any cut of a step's micro-batches into waves, and any place of the sums of gradients.
TEST_P(WavesIn, ChangeNoBitOfTheWeights) {
  static const std::vector<Variant> kCuts = {
      {"waves of one", {"placement.wave_micro_batches=1"}},
      {"waves of two and one", {"placement.wave_micro_batches=2"}},
      {"of two, updates not overlapped",
       {"placement.wave_micro_batches=2", "placement.overlap_update=false"}},
      {"of two, all on NVMe",
       {"placement.wave_micro_batches=2", "zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.offload_param.buffer_count=3"}},
      {"of four, activations kept", {"placement.wave_micro_batches=4", "placement.recompute=off"}},
      {"of two, unit inputs on the host",
       {"placement.wave_micro_batches=2", "placement.unit_inputs_to_cpu=on"}},
      {"of two, unit inputs on NVMe",
       {"placement.wave_micro_batches=2", "placement.unit_inputs_to_nvme=on"}},
      {"of one, all on the GPU",
       {"placement.wave_micro_batches=1", "zero_optimization.offload_optimizer.device=none",
        "zero_optimization.offload_param.device=none"}},
      {"of three, a third on each tier",
       {"placement.wave_micro_batches=3", "zero_optimization.offload_optimizer.device=auto",
        "zero_optimization.sub_group_size=1000",
        R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})"}},
      {"more than there are", {"placement.wave_micro_batches=1000"}},
  };
  std::vector<std::string> base = overrides_of(GetParam());
  for (const char* const more :
       {"model.dropout=0.1", "model.layers=4", "gradient_accumulation_steps=5"})
    base.emplace_back(more);
  const Trained expected = train(base);
  EXPECT_NE(expected.masters, masters_of(*SmallRun(base).start()));
  for (const Variant& cut : kCuts) {
    std::vector<std::string> overrides = base;
    overrides.insert(overrides.end(), cut.overrides.begin(), cut.overrides.end());
    expect_equal(expected, train(overrides), cut.name);
  }
}

// Makes sure that the test above would notice a missing setting.
TEST(ParameterGroupsIn, ASmallRunEachMakeADifference) {
  const Trained with = train(kInGroups);
  for (std::size_t i = 0; i + 1 < kInGroups.size(); ++i) {
    if (kInGroups[i].starts_with("gradient_clipping=") || kInGroups[i].ends_with("=auto")) continue;
    std::vector<std::string> without = kInGroups;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(train(without).masters, with.masters) << kInGroups[i];
  }
}

class LanesIn : public testing::TestWithParam<const char*> {};

// Lanes and rounds change the order of additions; waves and tiers do not.
TEST_P(LanesIn, ChangeBitsByThemselvesAlone) {
  static const std::vector<Variant> kOrders = {
      {"lanes", {"run.lanes=4"}},
      {"rounds", {"run.rounds=3"}},
      {"odd lanes in rounds", {"run.lanes=3", "run.rounds=2"}}};
  static const std::vector<Variant> kCuts = {
      {"waves of one", {"placement.wave_micro_batches=1"}},
      {"waves of five, all on NVMe",
       {"placement.wave_micro_batches=5", "zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme",
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.offload_param.buffer_count=3"}},
      {"waves of two, all on the GPU",
       {"placement.wave_micro_batches=2", "zero_optimization.offload_optimizer.device=none",
        "zero_optimization.offload_param.device=none"}}};
  std::vector<std::string> base = overrides_of(GetParam());
  base.insert(base.end(), {"model.dropout=0.1", "gradient_accumulation_steps=12"});
  const Trained plain = train(base);
  for (const Variant& order : kOrders) {
    std::vector<std::string> in_order = base;
    in_order.insert(in_order.end(), order.overrides.begin(), order.overrides.end());
    const Trained expected = train(in_order);
    // Some processors add up 16-bit products without rounding, in any order.
    if (GetParam() == std::string_view("fp32")) {
      EXPECT_NE(expected.masters, plain.masters) << order.name;
    }
    for (const Variant& cut : kCuts) {
      std::vector<std::string> overrides = in_order;
      overrides.insert(overrides.end(), cut.overrides.begin(), cut.overrides.end());
      expect_equal(expected, train(overrides), std::string(order.name) + ", " + cut.name);
    }
  }
}

// The same for bf16 moments, which differ, as do their results.
TEST(MomentsIn, ASmallRunMakeADifferenceThatStaysSmall) {
  const Trained wide = train({});
  const Trained narrow = train({"optimizer.params.moments=bf16"});
  EXPECT_NE(wide.masters, narrow.masters);
  EXPECT_EQ(wide.losses[0], narrow.losses[0]);
  EXPECT_NEAR(wide.losses.back(), narrow.losses.back(), 0.02 * wide.losses.back());
  // The random bits depend on the run's seed, which has no other effect here.
  const auto with_seed = [](const std::string& seed) {
    return train({"optimizer.params.moments=bf16", "model.dropout=0", "model.init_seed=5",
                  "data.shuffle_seed=6", "run.seed=" + seed});
  };
  const Trained one = with_seed("1");
  const Trained two = with_seed("2");
  EXPECT_EQ(one.losses[0], two.losses[0]);
  EXPECT_NE(one.masters, two.masters);
}

// Any result of a planner: each unit's state divided among the tiers, some units resident, some
// activations kept, some inputs on the host or on NVMe. Without a GPU its share is in RAM.
std::vector<offload::UnitPlacement> random_places(const ModelLayout& model, bool on_gpu,
                                                  aio::SplitMix& random) {
  std::vector<offload::UnitPlacement> places;
  const bool inputs_leave = random.below(2) == 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements = model.layout(unit).elements;
    offload::UnitPlacement place;
    // All, none, or some.
    const auto share = [&](std::uint64_t of) {
      const std::uint64_t kind = random.below(3);
      return kind == 0 ? 0 : kind == 1 ? of : random.below(of + 1);
    };
    place.gpu_elements = on_gpu ? share(elements) : 0;
    place.nvme_elements = share(elements - place.gpu_elements);
    place.cpu_elements = elements - place.gpu_elements - place.nvme_elements;
    place.resident = on_gpu && (place.gpu_elements > 0 || random.below(2) == 0);
    const bool has_host_params =
        model.has_frozen() ? !place.resident : place.gpu_elements < elements;
    place.params_on_nvme = has_host_params && random.below(2) == 0;
    if (random.below(3) == 0)
      place.activations = offload::ActivationPlace::kKeep;
    else if (inputs_leave && model.is_block(unit))
      place.activations = random.below(2) == 0 ? offload::ActivationPlace::kOffload
                                               : offload::ActivationPlace::kSpill;
    places.push_back(place);
  }
  return places;
}

class PlannedPlaces : public testing::TestWithParam<const char*> {};

TEST_P(PlannedPlaces, ChangeNoBitOfTheWeights) {
  std::vector<std::string> base = overrides_of(GetParam());
  for (const char* const more : {"model.layers=5", "zero_optimization.offload_param.device=auto",
                                 "zero_optimization.offload_optimizer.device=auto"})
    base.emplace_back(more);
  const SmallRun small(base);
  const ModelLayout model = configured_layout(small.config(), uses_cuda(small.config()));
  const Trained expected = train_on(*small.start());
  aio::SplitMix random(23);
  for (int round = 0; round < 8; ++round) {
    const auto places = random_places(model, uses_cuda(small.config()), random);
    const auto wave = static_cast<std::int64_t>(random.below(3));
    expect_equal(expected, train_on(*small.start({.places = places, .wave_micro_batches = wave})),
                 "round " + std::to_string(round));
  }
}

const auto kNameOf = [](const auto& name) { return std::string(name.param); };
INSTANTIATE_TEST_SUITE_P(Precisions, PlacementIn,
                         testing::Values("fp32", "bf16", "fp16", "bf16InGroups", "bf16Llama",
                                         "bf16Adapters", "fp32Adapters", "bf16BesideInt8",
                                         "bf16BesideNf4", "fp32BesideNf4Double", "fp32Experts",
                                         "bf16ExpertAdapters", "fp32OfBf16Moments",
                                         "bf16OfBf16Moments", "fp16OfBf16Moments",
                                         "bf16OfBf16MomentsAdapters"),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Models, WavesIn,
                         testing::Values("fp32", "bf16", "fp16", "bf16InGroups", "bf16Llama",
                                         "bf16Experts", "fp16Experts", "bf16Adapters",
                                         "bf16BesideInt8", "bf16TiedAdapters", "bf16TiedBesideInt8",
                                         "bf16TiedBesideNf4Double"),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Models, LanesIn,
                         testing::Values("fp32", "bf16", "fp16", "bf16Llama", "bf16Adapters",
                                         "fp32Experts"),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Models, PlannedPlaces,
                         testing::Values("bf16", "bf16Llama", "bf16Adapters", "fp16Adapters",
                                         "bf16OfBf16Moments", "bf16BesideInt8", "fp16BesideInt8",
                                         "fp32BesideInt8", "bf16BesideNf4", "fp16BesideNf4Double",
                                         "bf16TiedAdapters", "fp16TiedAdapters", "fp32TiedAdapters",
                                         "bf16TiedBesideInt8"),
                         kNameOf);

}  // namespace
}  // namespace sluice::engine
