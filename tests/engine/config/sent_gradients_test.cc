// How ranks send gradients, and DeepSpeed's key for it.
#include "engine/config/changes.h"
#include "engine/config/resolve.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using offload::SumCodec;
using testing::AllOf;
using testing::HasSubstr;

SumCodec codec_of(const std::string& section) {
  return accepted(resolve_run(run_with(section))).config.communication.gradients;
}

TEST(SentGradients, AreInFp32UnlessAsked) {
  EXPECT_EQ(codec_of(R"("run": {"steps": 1})"), SumCodec::kFp32);
  EXPECT_EQ(codec_of(R"("communication": {"gradients": "int8"})"), SumCodec::kInt8);
  EXPECT_EQ(codec_of(R"("communication": {"gradients": "int4"})"), SumCodec::kInt4);
  EXPECT_THAT(refusal(resolve_run(run_with(R"("communication": {"gradients": "int2"})"))),
              AllOf(HasSubstr("communication.gradients"), HasSubstr("int4")));
}

TEST(SentGradients, HaveFourBitsByDeepSpeedsKey) {
  EXPECT_EQ(codec_of(R"("zero_optimization": {"zero_quantized_gradients": true})"),
            SumCodec::kInt4);
  EXPECT_EQ(codec_of(R"("zero_optimization": {"zero_quantized_gradients": false})"),
            SumCodec::kFp32);
}

TEST(SentGradients, DecideResults) {
  const Config plain = accepted(resolve_run(run_with(R"("run": {"steps": 1})"))).config;
  Config quantised = plain;
  quantised.communication.gradients = SumCodec::kInt8;
  const auto changes = changed_keys(plain, quantised);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(to_text(changes.front()), "communication.gradients was \"fp32\" and is \"int8\"");
}

}  // namespace
}  // namespace sluice::config
