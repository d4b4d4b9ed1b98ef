// The kernel gives the host's bits of each codec in each form. Skipped without a GPU.
#include "offload/params/block_codec_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <tuple>
#include <vector>

#include "aio/split_mix.h"
#include "offload/params/block_codec.h"
#include "offload/state/state_tiles.h"
#include "tests/offload/on_a_gpu.h"

namespace sluice::offload {
namespace {

using Case = std::tuple<BlockCodec, ParamForm>;
class BlockCodecCuda : public OnAGpu<testing::TestWithParam<Case>> {};

INSTANTIATE_TEST_SUITE_P(Forms, BlockCodecCuda,
                         testing::Combine(testing::Values(BlockCodec::kInt8, BlockCodec::kNf4,
                                                          BlockCodec::kNf4Double),
                                          testing::Values(ParamForm::kSplit, ParamForm::kFp32,
                                                          ParamForm::kFp32AndFp16)));

// fp32 numbers of all sizes below 2^121, also denormals and zero.
float any_size(aio::SplitMix& random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random.below(0x7C000000)));
}

// All codes, and scales of all sizes.
std::vector<std::byte> random_bytes(const EncodedUnit& unit) {
  aio::SplitMix random(5);
  std::vector<std::byte> bytes(unit.bytes());
  const auto out = EncodedOut::of(unit, {}, bytes.data());
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  for (std::uint64_t group = 0; group < unit.groups; ++group)
    out.groups[group] = {any_size(random), group % 5 == 0 ? 0 : -any_size(random)};
  if (unit.groups > 0) return bytes;
  auto* const scales = reinterpret_cast<float*>(out.scales);
  for (std::uint64_t i = 1; i < unit.elements / row_of(unit.codec).block; ++i)
    scales[i] = any_size(random);
  scales[0] = 0;
  return bytes;
}

TEST_P(BlockCodecCuda, GivesTheBitsOfTheHost) {
  const auto [codec, form] = GetParam();
  const CodecRow& row = row_of(codec);
  constexpr std::uint64_t kElements = 5003 * 128;
  const std::uint64_t blocks = kElements / row.block;
  const EncodedUnit unit{.codec = codec,
                         .elements = kElements,
                         .groups = row.group == 0 ? 0 : (blocks + row.group - 1) / row.group};
  const std::vector<std::byte> bytes = random_bytes(unit);
  std::vector<float> values(kElements);
  decode(codec, EncodedIn::of(unit, {}, bytes.data()), 0, values);
  const std::uint64_t width = element_bytes(compute_type(form));
  std::vector<std::byte> expected(kElements * width);
  pack_parameters(form, values, expected.data());

  std::byte* memory = nullptr;
  const std::uint64_t out_offset = (bytes.size() + 255) / 256 * 256;
  check(cudaMalloc(&memory, out_offset + expected.size()));
  check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  check(cudaMemset(memory + out_offset, 0xAB, expected.size()));
  const auto from = EncodedIn::of(unit, {}, memory);
  const Status made = decode_cuda({.codec = codec,
                                   .codes = from.codes,
                                   .scales = from.scales,
                                   .groups = from.groups,
                                   .elements = kElements,
                                   .form = form,
                                   .out = memory + out_offset},
                                  nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message();
  std::vector<std::byte> got(expected.size());
  check(cudaMemcpy(got.data(), memory + out_offset, got.size(), cudaMemcpyDeviceToHost));
  check(cudaFree(memory));
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace sluice::offload
