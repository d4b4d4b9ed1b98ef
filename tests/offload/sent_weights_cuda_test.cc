// The kernels give the host's bits, in each form. Skipped without a GPU.
#include "offload/params/sent_weights_cuda.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/offload/on_a_gpu.h"
#include "tests/offload/sent_weights_under_test.h"

namespace sluice::offload {
namespace {

class SentWeightsCuda : public OnAGpu<testing::TestWithParam<ParamForm>> {};

INSTANTIATE_TEST_SUITE_P(Forms, SentWeightsCuda,
                         testing::Values(ParamForm::kSplit, ParamForm::kFp32,
                                         ParamForm::kFp32AndFp16));

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

TEST_P(SentWeightsCuda, GiveTheBitsOfTheHost) {
  constexpr std::uint64_t kElements = 5003 * kSentGroup;
  const auto whole = packed(GetParam(), hostile_values(kElements));
  for (const int world : {1, 3, 4}) {
    const SentUnit unit{
        .elements = kElements, .encoded = 4990 * kSentGroup, .world = world, .form = GetParam()};
    const CudaSentUnit form{.elements = unit.elements,
                            .encoded = unit.encoded,
                            .piece_elements = unit.piece_elements(),
                            .piece_bytes = unit.piece_bytes(),
                            .form = unit.form};
    std::vector<std::byte> pieces = pieces_of(unit, whole);
    std::byte* memory = nullptr;
    const std::uint64_t pieces_at = aligned(whole.size());
    const std::uint64_t out_at = pieces_at + aligned(pieces.size());
    check(cudaMalloc(&memory, out_at + whole.size()));
    check(cudaMemcpy(memory, whole.data(), whole.size(), cudaMemcpyHostToDevice));
    check(cudaMemset(memory + pieces_at, 0xAB, pieces.size()));  // as pieces_of() fills gaps
    for (int rank = 0; rank < world; ++rank) {
      const auto number = static_cast<std::uint64_t>(rank);
      const UnitShard shard = shard_of(kElements, {.rank = rank, .world = world});
      const Status made = encode_sent_cuda(form, rank, memory + shard.first_element * unit.width(),
                                           memory + pieces_at + number * form.piece_bytes, nullptr);
      ASSERT_TRUE(made.ok()) << made.error().message();
    }
    const Status made = decode_sent_cuda(form, memory + pieces_at, memory + out_at, nullptr);
    ASSERT_TRUE(made.ok()) << made.error().message();
    std::vector<std::byte> got_pieces(pieces.size());
    std::vector<std::byte> got(whole.size());
    check(cudaMemcpy(got_pieces.data(), memory + pieces_at, pieces.size(), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(got.data(), memory + out_at, got.size(), cudaMemcpyDeviceToHost));
    check(cudaFree(memory));
    EXPECT_EQ(got_pieces, pieces) << world << " ranks";
    EXPECT_EQ(got, gathered(unit, whole)) << world << " ranks";
  }
}

}  // namespace
}  // namespace sluice::offload
