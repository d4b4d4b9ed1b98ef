// The CUDA kernels return the CPU's bits. Skipped, with the reason, if there is no GPU.
#include "offload/adamw/adamw_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/grad_stats.h"
#include "tests/offload/adamw_case.h"
#include "tests/offload/on_a_gpu.h"

namespace sluice::offload {
namespace {

// A copy of `host` on the GPU, `offset` elements after an aligned address.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& host, std::size_t offset = 0)
      : offset_(offset), size_(host.size()) {
    check(cudaMalloc(&memory_, (size_ + offset_) * sizeof(T) + 1));
    check(cudaMemcpy(data(), host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnGpu() { cudaFree(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* data() const { return static_cast<T*>(memory_) + offset_; }
  void read(std::vector<T>& host) const {
    check(cudaMemcpy(host.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost));
  }

 private:
  std::size_t offset_;
  std::size_t size_;
  void* memory_ = nullptr;
};

// One step on the GPU, on the first `elements` elements; its result replaces `problem`.
void step_on_gpu(AdamwCase& problem, const AdamwKind& kind, const AdamwScalars& scalars,
                 std::size_t elements, std::size_t offset = 0) {
  const OnGpu grad32(problem.grad32, offset), master(problem.master, offset);
  const OnGpu m(problem.m, offset), v(problem.v, offset);
  const OnGpu grad16(problem.grad16, offset), param16(problem.param16, offset);
  const OnGpu lo(problem.lo, offset);
  const OnGpu m16(problem.m16, offset), v16(problem.v16, offset);
  AdamwArrays arrays = problem.arrays(kind);  // types and keys; the addresses are replaced
  arrays.grad =
      kind.grad == GradType::kFp32 ? static_cast<const void*>(grad32.data()) : grad16.data();
  arrays.master = master.data();
  arrays.param16 = param16.data();
  arrays.lo = lo.data();
  arrays.m = m.data();
  arrays.v = v.data();
  arrays.m16 = m16.data();
  arrays.v16 = v16.data();
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  const Status launched = adamw_step_cuda(scalars, arrays, elements, stream);
  if (!launched.ok()) throw std::runtime_error(launched.error().message());
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));
  master.read(problem.master);
  param16.read(problem.param16);
  lo.read(problem.lo);
  m.read(problem.m);
  v.read(problem.v);
  m16.read(problem.m16);
  v16.read(problem.v16);
}

class AdamwCuda : public OnAGpu<testing::TestWithParam<AdamwKind>> {};

void compare(const AdamwKind& kind, std::uint64_t chunks, std::size_t elements) {
  AdamwCase before(elements);
  for (std::uint64_t seed = 1; seed <= chunks; ++seed) {
    before.fill(seed);
    const AdamwScalars scalars = adamw_settings(static_cast<int>(seed % kAdamwSettings), kind.l2);
    AdamwCase expected = before, actual = before;
    adamw_scalar(scalars, expected.arrays(kind), 0, elements);
    step_on_gpu(actual, kind, scalars, elements);
    ASSERT_EQ(expected.difference(actual), "") << name_of(kind) << ", seed " << seed;
  }
}

TEST_P(AdamwCuda, ReturnsTheOraclesBitsForHostileNumbers) {
  compare(GetParam(), kAdamwSettings, 1'000'003);
}

TEST_P(AdamwCuda, ReturnsTheOraclesBitsForEveryLengthAndOffset) {
  AdamwCase before(200);
  before.fill(7);
  const AdamwScalars scalars = adamw_settings(3, GetParam().l2);
  for (std::size_t length = 0; length <= 200; ++length) {
    AdamwCase expected = before, actual = before;
    adamw_scalar(scalars, expected.arrays(GetParam()), 0, length);
    step_on_gpu(actual, GetParam(), scalars, length, length % 2 == 0 ? 0 : length % 9);
    ASSERT_EQ(expected.difference(actual), "") << length;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdamwCuda, testing::ValuesIn(all_adamw_kinds()),
                         [](const auto& test) { return name_of(test.param); });

class LongAdamwCuda : public OnAGpu<testing::TestWithParam<AdamwKind>> {};
TEST_P(LongAdamwCuda, ReturnsTheOraclesBitsForAHundredMillionElements) {
  compare(GetParam(), 100, 1'000'003);
}
INSTANTIATE_TEST_SUITE_P(All, LongAdamwCuda, testing::ValuesIn(all_adamw_kinds()),
                         [](const auto& test) { return name_of(test.param); });

class GradStatsCuda : public OnAGpu<testing::Test> {};

void compare_cast(const std::vector<float>& grad, GradType to, std::uint64_t first,
                  std::size_t offset) {
  const auto executor = aio::make_executor(2);
  const std::uint64_t elements = grad.size();
  std::vector<std::uint16_t> expected(elements), actual(elements);
  SquareSum sum(elements), gpu_sum(elements);
  sum.reset(first);
  gpu_sum.reset(first);
  cast_and_sum(**executor, best_isa(),
               {.grad = grad.data(), .to = to, .out = expected.data(), .elements = elements}, sum);

  std::vector<double> node_sums(sum_node_count(first, elements));
  const OnGpu gpu_grad(grad, offset);
  const OnGpu gpu_out(actual, offset);
  const OnGpu gpu_sums(node_sums);
  const Status launched = cast_and_sum_cuda({.grad = gpu_grad.data(),
                                             .to = to,
                                             .out = gpu_out.data(),
                                             .first = first,
                                             .elements = elements,
                                             .node_sums = gpu_sums.data()},
                                            nullptr);
  ASSERT_TRUE(launched.ok());
  check(cudaDeviceSynchronize());
  gpu_out.read(actual);
  gpu_sums.read(node_sums);
  gpu_sum.append_sums(elements, node_sums);

  if (to == GradType::kFp32) expected = actual;  // neither was written
  ASSERT_TRUE(actual == expected);
  ASSERT_EQ(gpu_sum.finite(), sum.finite());
  for (std::size_t i = 0; i < node_sums.size(); ++i) {
    if (std::isnan(sum.sums()[i])) {
      ASSERT_TRUE(std::isnan(node_sums[i])) << "node " << i;
    } else {
      ASSERT_EQ(node_sums[i], sum.sums()[i]) << "node " << i;
    }
  }
}

TEST_F(GradStatsCuda, CastsAndSumsAsTheCpuDoesWhereverTheRangeBegins) {
  HostileNumbers numbers(31);
  for (const GradType to : {GradType::kFp32, GradType::kBf16, GradType::kFp16})
    for (const std::uint64_t first : {0U, 1U, 255U, 256U, 65535U, 65536U, 123456U})
      for (const std::size_t elements : {1U, 7U, 300U, 65536U, 500'000U})
        for (const bool hostile : {false, true}) {
          std::vector<float> grad(elements);
          for (float& x : grad) x = hostile ? numbers.hostile() : numbers.ordinary();
          compare_cast(grad, to, first, first % 3);
          if (HasFatalFailure()) FAIL() << first << ", " << elements << " elements";
          // Aligned, so that rows are loaded in 16-byte pieces.
          compare_cast(grad, to, first, first % 8);
          if (HasFatalFailure()) FAIL() << first << ", " << elements << " elements, aligned";
        }
}

}  // namespace
}  // namespace sluice::offload
