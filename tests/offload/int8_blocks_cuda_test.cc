// The kernel gives the host's bits in each form. Skipped without a GPU.
#include "offload/params/int8_blocks_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "aio/split_mix.h"
#include "offload/params/int8_blocks.h"
#include "offload/state/state_tiles.h"
#include "tests/offload/on_a_gpu.h"

namespace sluice::offload {
namespace {

class Int8BlocksCuda : public OnAGpu<testing::TestWithParam<ParamForm>> {};

INSTANTIATE_TEST_SUITE_P(Forms, Int8BlocksCuda,
                         testing::Values(ParamForm::kSplit, ParamForm::kFp32,
                                         ParamForm::kFp32AndFp16));

TEST_P(Int8BlocksCuda, GivesTheBitsOfTheHost) {
  constexpr std::uint64_t kElements = 5003 * kInt8Block;
  aio::SplitMix random(5);
  std::vector<std::int8_t> numbers(kElements);
  for (auto& number : numbers) number = static_cast<std::int8_t>(random.below(255));
  std::vector<float> scales(kElements / kInt8Block);
  for (float& scale : scales)  // all sizes, including denormals and zero
    scale = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(0x7C000000)));
  scales.front() = 0;
  std::vector<float> values(kElements);
  dequantise_int8(numbers.data(), scales.data(), values);
  const std::uint64_t width = element_bytes(compute_type(GetParam()));
  std::vector<std::byte> expected(kElements * width);
  pack_parameters(GetParam(), values, expected.data());

  std::byte* memory = nullptr;
  const std::uint64_t scale_bytes = scales.size() * sizeof(float);
  check(cudaMalloc(&memory, kElements + scale_bytes + expected.size() + 512));
  auto* const on_gpu = memory + kElements;
  auto* const out = memory + (kElements + scale_bytes + 255) / 256 * 256;
  check(cudaMemcpy(memory, numbers.data(), kElements, cudaMemcpyHostToDevice));
  check(cudaMemcpy(on_gpu, scales.data(), scale_bytes, cudaMemcpyHostToDevice));
  check(cudaMemset(out, 0xAB, expected.size()));
  const Status made = dequantise_int8_cuda({.quantised = reinterpret_cast<std::int8_t*>(memory),
                                            .scales = reinterpret_cast<const float*>(on_gpu),
                                            .elements = kElements,
                                            .form = GetParam(),
                                            .out = out},
                                           nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message();
  std::vector<std::byte> got(expected.size());
  check(cudaMemcpy(got.data(), out, got.size(), cudaMemcpyDeviceToHost));
  check(cudaFree(memory));
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace sluice::offload
