// Drives, fractions and weights of a configuration.
#include "engine/config/resolve.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ResolveConfig, NvmeNeedsAFolderAndTheBudgetsComesFirst) {
  const std::string nvme = R"("zero_optimization": {"offload_param": {"device": "nvme")";
  EXPECT_THAT(refusal(resolve_run(run_with(nvme + "}}"))),
              AllOf(HasSubstr("budget.nvme_paths"), HasSubstr("offload_param.nvme_path")));

  EXPECT_THAT(refusal(resolve_run(run_with(R"("placement": {"unit_inputs_to_nvme": "on"})"))),
              AllOf(HasSubstr("placement.unit_inputs_to_nvme"), HasSubstr("budget.nvme_paths")));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("placement": {"gradients_to_nvme": "on"})"))),
              AllOf(HasSubstr("placement.gradients_to_nvme"), HasSubstr("budget.nvme_paths")));
  const std::string to_nvme =
      R"("budget": {"nvme_paths": ["/a"]}, "placement": {"unit_inputs_to_nvme": "on"})";
  EXPECT_EQ(accepted(resolve_run(run_with(to_nvme))).config.placement.unit_inputs_to_nvme,
            Tristate::kOn);
  EXPECT_THAT(refusal(resolve_run(run_with(to_nvme), {"placement.unit_inputs_to_cpu=off"})),
              AllOf(HasSubstr("unit_inputs_to_nvme"), HasSubstr("unit_inputs_to_cpu to \"auto\"")));
  const std::string with_path = nvme + R"(, "nvme_path": "/a"}})";
  EXPECT_THAT(accepted(resolve_run(run_with(with_path))).config.param_nvme_paths(),
              ElementsAre("/a"));

  const auto resolved =
      accepted(resolve_run(run_with(with_path), {R"(budget.nvme_paths=["/b","/c"])"}));
  EXPECT_THAT(resolved.config.param_nvme_paths(), ElementsAre("/b", "/c"));
  EXPECT_THAT(resolved.config.optimizer_nvme_paths(), ElementsAre("/b", "/c"));
  const auto reports = reports_on(resolved, "zero_optimization.offload_param.nvme_path");
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[1].reason, "budget.nvme_paths overrides it");
}

TEST(ResolveConfig, WeightsOfDrivesAreAutoEqualOrOneForEachFolder) {
  const std::string two = R"("budget": {"nvme_paths": ["/a", "/b"]})";
  const auto weights = [&](const std::string& given) {
    return accepted(resolve_run(run_with(two), {"placement.nvme_weights=" + given}))
        .config.placement.nvme_weights;
  };
  EXPECT_FALSE(accepted(resolve_run(run_with(two))).config.placement.nvme_weights.has_value());
  EXPECT_FALSE(weights("auto").has_value());
  EXPECT_THAT(*weights("equal"), testing::IsEmpty());
  EXPECT_THAT(*weights("[3, 1]"), ElementsAre(3, 1));
  const auto refused = [&](const std::string& given) {
    return refusal(resolve_run(run_with(two), {"placement.nvme_weights=" + given}));
  };
  EXPECT_THAT(refused("[3]"), AllOf(HasSubstr("placement.nvme_weights"), HasSubstr("2 and not 1")));
  EXPECT_THAT(refused("[0, 1]"), ContainsRegex("placement.nvme_weights.*at least 1, not 0"));
  EXPECT_THAT(refused("[1, 65]"), ContainsRegex("placement.nvme_weights.*at most 64, not 65"));
  EXPECT_THAT(refused("[1, 1.5]"), HasSubstr("which has a fraction"));
  EXPECT_THAT(refused("[]"), HasSubstr("\"equal\" or a list"));
  EXPECT_THAT(refused("fast"), HasSubstr("\"equal\" or a list"));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("budget": {"nvme_paths": ["/a", "/b", "/a"]})"))),
              HasSubstr("/a twice"));
}

TEST(ResolveConfig, FractionsNeedADeviceThatIsAuto) {
  const std::string fractions =
      R"("placement": {"optimizer_fractions": {"gpu": 0.5, "nvme": 0.5}})";
  EXPECT_THAT(refusal(resolve_run(run_with(fractions))),
              ContainsRegex("optimizer_fractions.*offload_optimizer.device.*\"auto\""));
  const std::string device = "zero_optimization.offload_optimizer.device=auto";
  EXPECT_THAT(refusal(resolve_run(run_with(fractions), {device})),
              HasSubstr("set budget.nvme_paths"));
  const Config config =
      accepted(resolve_run(run_with(fractions), {device, "budget.nvme_paths=/nvme"})).config;
  EXPECT_EQ(config.placement.optimizer_fractions->nvme, 0.5);
  EXPECT_THAT(refusal(resolve_run(run_with(R"("placement": {"optimizer_fractions": {"gpu": 0.5}})"),
                                  {device})),
              HasSubstr("0.5 instead of 1"));
}

}  // namespace
}  // namespace sluice::config
