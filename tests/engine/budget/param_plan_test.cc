// What plans say about parameters: raised keys, read-ahead, slots that fit.
#include "engine/budget/param_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/budget/configured_model.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/memory_plan.h"
#include "tests/engine/small_config.h"

namespace sluice::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MemoryPlan plan_of(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "run.device=cpu");
  const config::Config config = SmallConfig(overrides).config();
  const auto plan = plan_memory(config, configured_layout(config, /*on_gpu=*/false));
  EXPECT_TRUE(plan.ok());
  return *plan;
}

const std::vector<std::string> kOnNvme = {"zero_optimization.offload_param.device=nvme",
                                          "zero_optimization.stage3_param_persistence_threshold=0"};

std::vector<std::string> on_nvme_and(const std::vector<std::string>& more) {
  std::vector<std::string> all = kOnNvme;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(ParamPlan, SaysNothingOfDefaults) {
  EXPECT_THAT(plan_of({}).notes, IsEmpty());
  EXPECT_THAT(plan_of(kOnNvme).notes, IsEmpty());
}

TEST(ParamPlan, RaisesWhatIsTooSmallForTheModelAndSaysSo) {
  const MemoryPlan plan = plan_of(on_nvme_and({"zero_optimization.offload_param.buffer_size=10",
                                               "zero_optimization.offload_param.buffer_count=1",
                                               "zero_optimization.offload_param.max_in_cpu=20",
                                               "zero_optimization.stage3_prefetch_bucket_size=5"}));
  // A block of width 32: 12 x 32^2 and 13 vectors of 32, each padded to a multiple of 128.
  EXPECT_THAT(plan.notes, ElementsAre(HasSubstr("offload_param.buffer_size 10"),
                                      HasSubstr("offload_param.buffer_count 1"),
                                      HasSubstr("offload_param.max_in_cpu 20"),
                                      HasSubstr("stage3_prefetch_bucket_size 5")));
  EXPECT_EQ(plan.params.options.cache_buffers, 3);
  EXPECT_EQ(plan.params.options.read_ahead, 1);
}

TEST(ParamPlan, LimitsBuffersToWhatMayBeInMemory) {
  EXPECT_EQ(plan_of(on_nvme_and({"zero_optimization.offload_param.buffer_count=6"}))
                .params.options.cache_buffers,
            6);
  EXPECT_EQ(plan_of(on_nvme_and({"zero_optimization.offload_param.buffer_count=6",
                                 "zero_optimization.offload_param.max_in_cpu=60000"}))
                .params.options.cache_buffers,
            4);
}

TEST(ParamPlan, ReadsAheadWhatTheBucketOrThePlacementSays) {
  EXPECT_EQ(plan_of(on_nvme_and({"zero_optimization.stage3_prefetch_bucket_size=28000"}))
                .params.options.read_ahead,
            2);
  const std::string units = "placement.prefetch_units=5";
  const std::string buffers = "zero_optimization.offload_param.buffer_count=";
  EXPECT_EQ(plan_of(on_nvme_and({units, buffers + "8"})).params.options.read_ahead, 5);
  EXPECT_EQ(plan_of(on_nvme_and({units, buffers + "3"})).params.options.read_ahead, 2);
}

TEST(ParamPlan, KeepsInMemoryWhatIsSmallAsFarAsAllowed) {
  const auto on_drive = [](const MemoryPlan& plan) {
    int units = 0;
    for (const auto& unit : plan.params.options.units)
      units += unit.tier == offload::Tier::kNvme ? 1 : 0;
    return units;
  };
  const std::string device = "zero_optimization.offload_param.device=nvme";
  const std::string one = "zero_optimization.stage3_param_persistence_threshold=100";
  const std::string all = "zero_optimization.stage3_param_persistence_threshold=1e6";
  EXPECT_EQ(on_drive(plan_of({device, one})), 5);  // the head has 256 elements
  EXPECT_EQ(on_drive(plan_of({device, all})), 0);
  EXPECT_GT(on_drive(plan_of(
                {device, all, "zero_optimization.stage3_model_persistence_threshold=15000"})),
            2);
}

TEST(ParamPlan, RaisesTheBuffersOfStateOnNvme) {
  const std::vector<std::string> one = {"zero_optimization.offload_optimizer.buffer_count=1"};
  EXPECT_THAT(plan_of(one).notes, IsEmpty());
  std::vector<std::string> on_nvme = one;
  on_nvme.push_back("zero_optimization.offload_optimizer.device=nvme");
  EXPECT_THAT(plan_of(on_nvme).notes, Contains(HasSubstr("offload_optimizer.buffer_count 1")));
}

// Units take turns; the head's sum for the embedding's parameter has memory of its own.
TEST(GradientAccumulators, AreSharedButForSumsOfWhatIsBorrowed) {
  const ModelLayout model =
      configured_layout(SmallConfig({"run.device=cpu"}).config(), /*on_gpu=*/false);
  const auto lent_index = static_cast<std::size_t>(model.borrowed(model.head()).at(0).parameter);
  const ParameterSpec& lent = model.layout(0).parameters[lent_index];
  for (int unit = 0; unit < model.head(); ++unit)
    EXPECT_EQ(model.borrowed_sums(unit).slot_elements, 0U);
  const UnitLayout& sums = model.borrowed_sums(model.head());
  ASSERT_EQ(sums.parameters.size(), 1U);
  EXPECT_EQ(sums.parameters[0].shape, lent.slot_shape());
  const auto bytes_with = [&](const offload::HeldSums& held) {
    return unit_gradient_bytes(model, offload::GradType::kBf16, held, model.head()).borrowed_sums;
  };
  EXPECT_EQ(bytes_with({}), sums.slot_elements * sizeof(float));
  EXPECT_EQ(bytes_with({.levels = 3, .kept = 2}), 3 * sums.slot_elements * sizeof(float));
}

}  // namespace
}  // namespace sluice::engine
