#include "engine/probe/gpu_probe.h"

#include <gmock/gmock.h>

#include "engine/device/gpu.h"
#include "engine/families/make_model.h"
#include "tests/aio/backends_under_test.h"

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "engine/probe/unit_timer.h"

namespace sluice::engine {
namespace {

// Limits LibTorch to this share of the GPU while the object exists.
class MostOfTheGpu {
 public:
  explicit MostOfTheGpu(std::uint64_t bytes) {
    set(static_cast<double>(bytes) / static_cast<double>(cuda_memory()->total_bytes));
  }
  ~MostOfTheGpu() { set(1.0); }
  MostOfTheGpu(const MostOfTheGpu&) = delete;
  MostOfTheGpu& operator=(const MostOfTheGpu&) = delete;

 private:
  static void set(double share) {
    c10::cuda::CUDACachingAllocator::setMemoryFraction(share, c10::cuda::current_device());
  }
};

std::uint64_t reserved_bytes() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.reserved_bytes[0].current);
}

class ProbeCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
    at::globalContext().lazyInitDevice(at::kCUDA);  // limits and statistics need the allocator
  }
};

// Bounds that hold for every GPU from Pascal to those of the next years.
TEST_F(ProbeCuda, FindsRatesWithinPhysicalBounds) {
  PassSpread spread;
  const auto speeds = probe_gpu({.spread = &spread});
  ASSERT_OK(speeds);
  EXPECT_GT(spread.worst(), 1) << "no two passes take the same time to the nanosecond";
  for (const double rate : {speeds->bus.in_bytes_per_s, speeds->bus.out_bytes_per_s,
                            speeds->bus.in_both_bytes_per_s, speeds->bus.out_both_bytes_per_s}) {
    EXPECT_GT(rate, 1e9);
    EXPECT_LT(rate, 1e12);
  }
  EXPECT_LT(speeds->bus.in_both_bytes_per_s, 1.1 * speeds->bus.in_bytes_per_s);
  EXPECT_LT(speeds->bus.out_both_bytes_per_s, 1.1 * speeds->bus.out_bytes_per_s);
  EXPECT_GT(speeds->copy_bytes_per_s, 50e9);
  EXPECT_LT(speeds->copy_bytes_per_s, 50e12);
  EXPECT_GT(speeds->matmul_flops_per_s, 1e12);
  EXPECT_LT(speeds->matmul_flops_per_s, 20e15);
  // A step moves 26 bytes per element, and cannot be faster than memory.
  const int bytes =
      offload::adamw_bytes_per_param(offload::GradType::kBf16, {offload::ParamForm::kSplit});
  EXPECT_GT(speeds->adamw_elements_per_s * bytes, 0.2 * speeds->copy_bytes_per_s);
  EXPECT_LT(speeds->adamw_elements_per_s * bytes, 1.3 * speeds->copy_bytes_per_s);
}

TEST_F(ProbeCuda, MeasuresEveryForm) {
  using offload::GradType;
  using offload::ParamForm;
  const auto fp16 = probe_gpu({.form = {ParamForm::kFp32AndFp16},
                               .grad_type = GradType::kFp16,
                               .type = offload::ElementType::kFp16,
                               .seconds = 0.1});
  ASSERT_OK(fp16);
  EXPECT_GT(fp16->adamw_elements_per_s, 1e9);
  const auto narrow =
      probe_gpu({.form = {ParamForm::kSplit, offload::ElementType::kBf16}, .seconds = 0.1});
  ASSERT_OK(narrow);
  EXPECT_GT(narrow->adamw_elements_per_s, 1e9);
  const auto fp32 = probe_gpu({.form = {ParamForm::kFp32},
                               .grad_type = GradType::kFp32,
                               .type = offload::ElementType::kFp32,
                               .seconds = 0.1});
  ASSERT_OK(fp32);
  EXPECT_GT(fp32->matmul_flops_per_s, 1e12);
}

TEST_F(ProbeCuda, StaysWithinItsLimitAndGivesEverythingBack) {
  constexpr std::uint64_t kLimit = 192 * kMiB;
  constexpr std::uint64_t kWorkspace = 128 * kMiB;  // cuBLAS's own, in addition
  const std::uint64_t before = reserved_bytes();
  const std::uint64_t pinned_before = cuda_pinned_bytes();
  {
    const MostOfTheGpu limit(before + kLimit + kWorkspace);
    ASSERT_OK(probe_gpu({.memory_limit_bytes = kLimit, .seconds = 0.1}));
  }
  EXPECT_LE(reserved_bytes(), before);
  EXPECT_EQ(cuda_pinned_bytes(), pinned_before);
}

// The machine is like WSL2: the bus is measured as a run would use it.
TEST_F(ProbeCuda, MeasuresPageableMemoryWhereLittleCanBePinned) {
  struct NoLimit {
    ~NoLimit() { cuda_host_pinning().set_limit({}); }
  } const no_limit;
  const auto usual = probe_gpu({.seconds = 0.3});
  ASSERT_OK(usual);
  EXPECT_FALSE(usual->pin.is_limited());
  for (const std::uint64_t limit : {std::uint64_t{0}, 500 * kMiB}) {
    cuda_host_pinning().set_limit(limit);
    const auto limited = probe_gpu({.seconds = 0.3});
    ASSERT_OK(limited);
    EXPECT_TRUE(limited->pin.is_limited());
    EXPECT_LE(limited->pin.pinned_bytes, static_cast<double>(limit));
    for (const double rate : {limited->bus.in_bytes_per_s, limited->bus.out_bytes_per_s,
                              limited->bus.in_both_bytes_per_s, limited->bus.out_both_bytes_per_s})
      EXPECT_GT(rate, 1e8) << "bytes per second, with " << limit << " bytes pinned";
    EXPECT_LT(limited->bus.in_bytes_per_s, usual->bus.in_bytes_per_s);
    EXPECT_EQ(cuda_host_pinning().pinned_bytes() + cuda_host_pinning().refused_bytes(), 0U);
  }
}

TEST_F(ProbeCuda, SaysThatMemoryWasMissingAndGivesBackWhatItGot) {
  const std::uint64_t before = reserved_bytes();
  const MostOfTheGpu limit(before + 96 * kMiB);
  const auto speeds = probe_gpu({.memory_limit_bytes = kGiB, .seconds = 0.1});
  ASSERT_FALSE(speeds.ok());
  EXPECT_EQ(speeds.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(speeds.error().message(), testing::HasSubstr("1G"));
  EXPECT_LE(reserved_bytes(), before);
}

TEST_F(ProbeCuda, RefusesALimitThatHoldsNothing) {
  const auto speeds = probe_gpu({.memory_limit_bytes = 8 * kMiB});
  ASSERT_FALSE(speeds.ok());
  EXPECT_EQ(speeds.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(speeds.error().message(), testing::HasSubstr("budget.gpu_gib"));
}

TEST_F(ProbeCuda, KnowsItsGpu) {
  const auto identity = gpu_identity();
  ASSERT_TRUE(identity.has_value());
  EXPECT_FALSE(identity->name.empty());
  EXPECT_THAT(identity->driver, testing::ContainsRegex("CUDA [0-9]+\\.[0-9]"));
}

TEST_F(ProbeCuda, TimesUnitsWithinTheMemoryItStates) {
  const auto made = make_model({.shape = {.layers = 2,
                                          .hidden = 1024,
                                          .heads = 16,
                                          .context_tokens = 1024,
                                          .vocab = 50257,
                                          .dropout = 0.1},
                                .padded_vocab = 50304});
  const Model& model = *made;
  UnitTimerOptions options{
      .device = at::kCUDA, .type = offload::ElementType::kBf16, .micro_batch = 4, .tokens = 1024};
  const std::uint64_t before = reserved_bytes();
  const std::uint64_t needed = unit_timer_bytes(model.layout(), options);
  const MostOfTheGpu limit(before + needed);
  const auto times = time_units(model, options);
  ASSERT_OK(times);
  EXPECT_LE(reserved_bytes(), before);
  // Backward does more than forward, and a GPU computes a block at less than 20 PFLOP/s.
  EXPECT_GT(times->of("block").backward_s, times->of("block").forward_s);
  EXPECT_LT(times->of("block").recompute_s, 1.2 * times->of("block").forward_s);
  EXPECT_GT(times->of("block").forward_s,
            4 * 1024 * model.layout().kind(1).flops(1024).forward / 20e15);
  EXPECT_GT(times->of("head").backward_s, 0);
  EXPECT_GT(times->of("embedding").forward_s, 0);
}

}  // namespace
}  // namespace sluice::engine

#else

namespace sluice::engine {
namespace {

TEST(ProbeWithoutCuda, SaysWhatIsMissing) {
  EXPECT_FALSE(gpu_identity().has_value());
  const auto speeds = probe_gpu({});
  ASSERT_FALSE(speeds.ok());
  EXPECT_EQ(speeds.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace sluice::engine

#endif
