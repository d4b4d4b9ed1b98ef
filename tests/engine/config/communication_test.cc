// What ranks send, and DeepSpeed's keys for it.
#include "engine/config/changes.h"
#include "engine/config/resolve.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// `zero` in the section of stage 3.
std::string stage_3(const std::string& zero) {
  return R"({"train_batch_size": 8, "zero_optimization": {"stage": 3)" + zero + "}}";
}

TEST(Communication, IsPlainUnlessAsked) {
  const Config plain = accepted(resolve_deepspeed(stage_3(
                                    R"(, "zero_quantized_weights": false,
                                        "zero_quantized_nontrainable_weights": false,
                                        "zero_hpz_partition_size": 1)")))
                           .config;
  EXPECT_EQ(plain.communication.weights, SentWeights::kFull);
  EXPECT_EQ(plain.communication.host_copy, HostCopy::kOff);
}

TEST(Communication, FollowsDeepSpeedsKeys) {
  const Resolved resolved = accepted(resolve_deepspeed(
      stage_3(R"(, "zero_quantized_weights": true, "zero_hpz_partition_size": 8)")));
  EXPECT_EQ(resolved.config.communication.weights, SentWeights::kInt8);
  EXPECT_EQ(resolved.config.communication.host_copy, HostCopy::kAuto);
  EXPECT_EQ(report_on(resolved, "communication.host_copy").reason,
            "zero_optimization.zero_hpz_partition_size");
  const Config off = accepted(resolve_both(R"({"communication": {"host_copy": "off"}})",
                                           stage_3(R"(, "zero_hpz_partition_size": 8)")))
                         .config;
  EXPECT_EQ(off.communication.host_copy, HostCopy::kOff);
}

TEST(Communication, IsOfStage3) {
  const std::string int8 = R"("communication": {"weights": "int8"})";
  EXPECT_THAT(refusal(resolve_run(run_with(int8 + R"(, "zero_optimization": {"stage": 2})"))),
              AllOf(HasSubstr("communication.weights int8"), HasSubstr("stage to 3")));
  const Resolved copies =
      accepted(resolve_run(run_with(R"("communication": {"host_copy": "ram"})")));
  EXPECT_EQ(copies.config.communication.host_copy, HostCopy::kOff);
  EXPECT_THAT(reports_on(copies, "communication.host_copy").back().reason,
              HasSubstr("below stage 3"));
}

TEST(Communication, NamesAPartitionThatDoesNotDivideTheRanks) {
  const auto resolved = resolve_run(stage_3(R"(, "zero_hpz_partition_size": 3)"), {}, 4);
  EXPECT_THAT(refusal(resolved), AllOf(HasSubstr("zero_hpz_partition_size 3"), HasSubstr("4 ranks"),
                                       HasSubstr("each host")));
  accepted(resolve_run(stage_3(R"(, "zero_hpz_partition_size": 2)"), {}, 4));
}

TEST(Communication, GathersTheFrozenModelOfAdaptersIn8Bits) {
  const std::string frozen = stage_3(R"(, "zero_quantized_nontrainable_weights": true)");
  const Config none = accepted(resolve_run(frozen)).config;
  EXPECT_EQ(none.communication.weights, SentWeights::kFull);  // nothing is frozen
  const std::vector<std::string> adapters = {"model.preset=qwen3-0.6b", "recipe.lora.rank=2"};
  EXPECT_EQ(accepted(resolve_run(frozen, adapters)).config.communication.weights,
            SentWeights::kInt8);
  std::vector<std::string> nf4 = adapters;
  nf4.emplace_back("recipe.lora.base_bits=4");
  EXPECT_THAT(report_on(accepted(resolve_run(frozen, nf4)), "communication.weights").reason,
              HasSubstr("4 bits that it is stored in"));
}

// Other rounding decides results; where a copy is kept does not.
TEST(Communication, ChangesResultsByItsWeightsAlone) {
  EXPECT_TRUE(decides_results("communication.weights"));
  EXPECT_FALSE(decides_results("communication.host_copy"));
  const Config plain = accepted(resolve_run(stage_3(""))).config;
  const Config int8 = accepted(resolve_run(stage_3(""), {"communication.weights=int8"})).config;
  const auto changes = changed_keys(plain, int8);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(to_text(changes.front()), "communication.weights was \"full\" and is \"int8\"");
}

}  // namespace
}  // namespace sluice::config
