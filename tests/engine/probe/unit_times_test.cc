#include "engine/probe/unit_times.h"

#include <gtest/gtest.h>

namespace sluice::engine {
namespace {

const GptShape kShape = {.layers = 3, .hidden = 64, .heads = 2, .context_tokens = 32, .vocab = 100};
const PassShape kPass = {.micro_batch = 2, .tokens = 32, .number_bytes = 2};

TEST(UnitTimes, AreOperationsOverTheRateTimesTheEfficiency) {
  const UnitTimes times = estimate_units(
      kShape, 0, kPass, {.matmul_flops_per_s = 1e9, .copy_bytes_per_s = 1e9, .efficiency = 0.25});
  // By hand: 64 tokens; a token of a block has 12 * 64^2 multiply-adds in its matrices and 33 * 64
  // in its two products of attention, half of whose scores the mask leaves.
  const double block_flops = 64.0 * 2 * (12 * 64 * 64 + 33 * 64);
  EXPECT_NEAR(times.block.forward_s, block_flops / 0.25e9, 1e-12);
  EXPECT_NEAR(times.head.forward_s, 64.0 * 2 * 100 * 64 / 0.25e9, 1e-12);
  EXPECT_NEAR(times.head.backward_s, 2 * times.head.forward_s, 1e-12);
  EXPECT_GT(times.block.backward_s, 2 * times.block.forward_s);
  EXPECT_LT(times.block.recompute_s, times.block.forward_s);
  // Two rows in, one out, of 16-bit numbers.
  EXPECT_NEAR(times.embedding.forward_s, 64.0 * 64 * 3 * 2 / 1e9, 1e-15);
  EXPECT_GT(times.embedding.backward_s, times.embedding.forward_s);
}

TEST(UnitTimes, GrowWithTheMicroBatchAndThePaddedVocabulary) {
  const EstimateRates rates{.matmul_flops_per_s = 1e12, .copy_bytes_per_s = 1e11};
  const UnitTimes one = estimate_units(kShape, 0, kPass, rates);
  PassShape larger = kPass;
  larger.micro_batch *= 5;
  const UnitTimes five = estimate_units(kShape, 0, larger, rates);
  EXPECT_NEAR(five.block.backward_s, 5 * one.block.backward_s, 1e-15);
  EXPECT_NEAR(five.embedding.backward_s, 5 * one.embedding.backward_s, 1e-15);
  const UnitTimes padded = estimate_units(kShape, 200, kPass, rates);
  EXPECT_NEAR(padded.head.forward_s, 2 * one.head.forward_s, 1e-15);
  EXPECT_EQ(padded.block.forward_s, one.block.forward_s);
}

}  // namespace
}  // namespace sluice::engine
