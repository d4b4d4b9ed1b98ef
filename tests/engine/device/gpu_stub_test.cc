// A build without CUDA code computes on the CPU on every machine: it plans nothing for a GPU, and
// explains why if a configuration asks for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/gpu.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

TEST(GpuStub, IsNeverComputedOn) {
  EXPECT_FALSE(has_cuda_code());
  EXPECT_FALSE(gpu_is_there());
  config::Config config;
  for (const auto device : {config::Device::kAuto, config::Device::kCpu, config::Device::kCuda}) {
    config.run.device = device;
    EXPECT_FALSE(uses_cuda(config));
  }
}

TEST(GpuStub, SaysThatTheBuildLacksItsCode) {
  config::Config config;
  EXPECT_TRUE(check_device(config).ok());
  config.run.device = config::Device::kCuda;
  const Status refused = check_device(config);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("no CUDA code"));
}

}  // namespace
}  // namespace sluice::engine
