#include "engine/exchange/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

const ParameterNames kNames = {.prefix = "transformer.",
                               .head = "lm_head.weight",
                               .is_tied = true,
                               .token_embedding = "wte.weight"};

class TiedHead : public testing::Test {
 protected:
  // Writes two tensors; the head's last value is different if `differs`.
  Status check(DType dtype, bool differs, std::uint64_t rows = 300) {
    const std::string path = folder_.file("model.safetensors");
    const std::vector<TensorSpec> tensors = {{"transformer.wte.weight", dtype, {rows, 4096}},
                                             {"lm_head.weight", dtype, {rows, 4096}}};
    SafetensorsWriter::Options options;
    options.path = path;
    auto writer = SafetensorsWriter::create(*queue_, options, tensors);
    SLUICE_RETURN_IF_ERROR(writer.ok() ? Status() : Status(writer.error()));
    std::vector<float> values = values_of(1, rows * 4096);
    values[7] = std::numeric_limits<float>::quiet_NaN();
    SLUICE_RETURN_IF_ERROR((*writer)->append(tensors[0].name, values));
    if (differs) values.back() += 1;
    SLUICE_RETURN_IF_ERROR((*writer)->append(tensors[1].name, values));
    SLUICE_RETURN_IF_ERROR((*writer)->finish());
    SLUICE_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::open(*queue_, path));
    EXPECT_TRUE(check_tied_head(kNames, *reader, rows * 4096 - 1).ok());  // all but the last value
    return check_tied_head(kNames, *reader);
  }

  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ =
      aio::make_backend_or_die(aio::BackendKind::kPosix);
  const std::unique_ptr<aio::IoQueue> queue_ = aio::make_queue_or_die(*backend_, {});
};

TEST_F(TiedHead, IsTheEmbeddingToItsLastBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_TRUE(check(dtype, false).ok());
    const Status refused = check(dtype, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("\"lm_head.weight\""));
    EXPECT_THAT(refused.error().message(), HasSubstr("token 299 "));
  }
}

}  // namespace
}  // namespace sluice::engine
