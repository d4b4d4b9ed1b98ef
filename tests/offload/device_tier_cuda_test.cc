// The offloader with a real GPU as its gpu tier gives the oracle's bits.
#include "offload/state/device_tier_cuda.h"

#include <gmock/gmock.h>

#include "tests/offload/offloader_under_test.h"
#include "tests/offload/on_a_gpu.h"

namespace sluice::offload {
namespace {

class CudaTestDevice final : public TestDevice {
 public:
  explicit CudaTestDevice(std::uint64_t size_bytes) {
    std::byte* const memory = allocate(size_bytes);
    check(cudaStreamCreate(&stream_));
    tier_.emplace(std::span(memory, size_bytes), stream_);
  }
  ~CudaTestDevice() override {
    cudaStreamDestroy(stream_);
    for (void* memory : allocated_) cudaFree(memory);
  }
  std::span<std::byte> memory() const override { return tier_->memory(); }
  Status step(const AdamwScalars& scalars, const AdamwArrays& arrays,
              std::uint64_t elements) override {
    return tier_->step(scalars, arrays, elements);
  }
  Status start_read(const void* from, std::span<std::byte> to) override {
    return tier_->start_read(from, to);
  }
  Status start_write(void* to, std::span<const std::byte> from) override {
    return tier_->start_write(to, from);
  }
  Status finish() override { return tier_->finish(); }
  std::byte* allocate(std::size_t size_bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, size_bytes));
    allocated_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  void synchronize() override { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> allocated_;
  std::optional<CudaDeviceTier> tier_;
};

class OptimizerOffloaderOnCuda : public OnAGpu<testing::TestWithParam<ProblemKind>> {};

TEST_P(OptimizerOffloaderOnCuda, GivesTheOraclesBitsForEveryShareOfTheGpu) {
  const Problem problem(GetParam(), {{"wte", {{0, 700'001}}}, {"h.0", {{0, 205'000}, {1, 333}}}},
                        20);
  for (const TierFractions& fractions : {TierFractions{.gpu = 1, .cpu = 0, .nvme = 0},
                                         TierFractions{.gpu = 0.5, .cpu = 0.2, .nvme = 0.3}}) {
    for (const std::uint64_t elements : {1024U, 1U << 20, 70'001U}) {
      for (const bool background : {false, true}) {
        Rig rig(problem, {.fractions = fractions,
                          .sub_group_elements = elements,
                          .threads = 2,
                          .drive = background ? Drive::kPosix : Drive::kSim,
                          .make_device = [](std::uint64_t size_bytes) {
                            return std::make_unique<CudaTestDevice>(size_bytes);
                          }});
        ASSERT_OK(rig.restore());
        for (int step = 0; step < problem.steps(); ++step)
          ASSERT_OK(rig.run_step(step, background));
        ASSERT_EQ(rig.difference_from_solution(), "")
            << fractions.gpu << " on the GPU, sub-groups of " << elements;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, OptimizerOffloaderOnCuda, testing::ValuesIn(kProblemKinds), [](const auto& test) {
      return name_of(AdamwKind{test.param.grad, test.param.form, false, test.param.moments});
    });

class CudaDeviceTierTest : public OnAGpu<testing::Test> {};

TEST_F(CudaDeviceTierTest, SaysInCudasWordsWhyACopyFailed) {
  CudaTestDevice device(4096);
  Bytes bytes(64);
  Status status = device.start_read(reinterpret_cast<void*>(64), bytes);
  if (status.ok()) status = device.finish();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), testing::HasSubstr("64 bytes from the GPU"));
}

}  // namespace
}  // namespace sluice::offload
