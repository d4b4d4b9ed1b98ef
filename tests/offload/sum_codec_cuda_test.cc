// The kernels give the host's bits. Skipped without a GPU.
#include "offload/sum_codec_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "tests/offload/on_a_gpu.h"

namespace sluice::offload {
namespace {

class SumCodecCuda : public OnAGpu<testing::TestWithParam<SumCodec>> {};

INSTANTIATE_TEST_SUITE_P(Bits, SumCodecCuda, testing::Values(SumCodec::kInt4, SumCodec::kInt8));

TEST_P(SumCodecCuda, GivesTheBitsOfTheHost) {
  constexpr std::uint64_t kPieces = 3;
  constexpr std::uint64_t kOfAPiece = 37 * kSumCodecBlock;
  constexpr std::uint64_t kStride = kOfAPiece + 2 * kSumCodecBlock;
  std::mt19937 random(5);
  std::normal_distribution<float> any;
  std::vector<float> values(kPieces * kStride);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = any(random) * std::pow(10.0F, static_cast<float>(i / kSumCodecBlock % 70) - 40);
  values[5] = std::numeric_limits<float>::infinity();
  const std::uint64_t of_piece = encoded_sum_bytes(GetParam(), kOfAPiece);
  std::vector<std::byte> bytes(kPieces * of_piece);
  std::vector<float> decoded(kPieces * kOfAPiece);
  for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
    std::byte* const part = bytes.data() + piece * of_piece;
    encode_sum(GetParam(), values.data() + piece * kStride, kOfAPiece, part);
    decode_sum(GetParam(), part, decoded.data() + piece * kOfAPiece, kOfAPiece);
  }
  float* from = nullptr;
  std::byte* codes = nullptr;
  float* to = nullptr;
  check(cudaMalloc(&from, values.size() * sizeof(float)));
  check(cudaMalloc(&codes, bytes.size()));
  check(cudaMalloc(&to, decoded.size() * sizeof(float)));
  check(cudaMemcpy(from, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  CudaSumPieces pieces{
      .codec = GetParam(), .pieces = kPieces, .elements = kOfAPiece, .stride = kStride};
  const Status encoded = encode_sums_cuda(pieces, from, codes, nullptr);
  ASSERT_TRUE(encoded.ok()) << encoded.error().message();
  pieces.stride = kOfAPiece;
  const Status made = decode_sums_cuda(pieces, codes, to, nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message();
  std::vector<std::byte> got_bytes(bytes.size());
  std::vector<float> got(decoded.size());
  check(cudaMemcpy(got_bytes.data(), codes, bytes.size(), cudaMemcpyDeviceToHost));
  check(cudaMemcpy(got.data(), to, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  check(cudaFree(from));
  check(cudaFree(codes));
  check(cudaFree(to));
  EXPECT_EQ(got_bytes, bytes);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(decoded[i]))
      ASSERT_TRUE(std::isnan(got[i])) << i;
    else
      ASSERT_EQ(got[i], decoded[i]) << i;
  }
}

}  // namespace
}  // namespace sluice::offload
