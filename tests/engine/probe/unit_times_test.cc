#include "engine/probe/unit_times.h"

#include <gtest/gtest.h>

#include "engine/families/families.h"

namespace sluice::engine {
namespace {

const ModelShape kShape = {
    .layers = 3, .hidden = 64, .heads = 2, .context_tokens = 32, .vocab = 100};
ModelLayout model_of(std::int64_t padded_vocab = 0) {
  return model_layout({.shape = kShape, .padded_vocab = padded_vocab});
}
const PassShape kPass = {.micro_batch = 2, .tokens = 32, .number_bytes = 2};

TEST(UnitTimes, AreWhatProductsAttentionAndKernelsTake) {
  const UnitTimes times =
      estimate_units(model_of(), kPass, {.product_flops_per_s = 0.25e9, .kernel_bytes_per_s = 1e9});
  // Computed by hand for 64 tokens. A token of a block has 12 * 64^2 multiply-adds in its matrices
  // and 33 * 64 in its two products of attention; the mask leaves half of the scores. Its kernels
  // read or write 10 rows of 64 and two of 256, 16-bit numbers.
  const double block_flops = 64.0 * 2 * (12 * 64 * 64 + 33 * 64);
  const double block_bytes = 64.0 * 2 * (10 * 64 + 2 * 256);
  EXPECT_NEAR(times.of("block").forward_s, block_flops / 0.25e9 + block_bytes / 1e9, 1e-12);
  const double logits_s = 64.0 * 2 * 2 * 100 / 1e9;  // written and read
  const double product_s = 64.0 * 2 * 100 * 64 / 0.25e9;
  EXPECT_NEAR(times.of("head").forward_s, product_s + logits_s, 1e-12);
  EXPECT_NEAR(times.of("head").backward_s, 2 * product_s + logits_s, 1e-12);
  EXPECT_GT(times.of("block").backward_s, 2 * times.of("block").forward_s);
  EXPECT_LT(times.of("block").recompute_s, times.of("block").forward_s);
  // Two rows in, one out, 16-bit numbers.
  EXPECT_NEAR(times.of("embedding").forward_s, 64.0 * 64 * 3 * 2 / 1e9, 1e-15);
  EXPECT_GT(times.of("embedding").backward_s, times.of("embedding").forward_s);
}

// Heads of 32 in sequences of 480 tokens get a quarter of a half of attention's rate.
TEST(UnitTimes, GiveShortSequencesAndNarrowHeadsLessOfAttentionsRate) {
  PassShape longer = kPass;
  longer.tokens = 480;
  const EstimateRates same{.product_flops_per_s = 1e9, .kernel_bytes_per_s = 1e30};
  EstimateRates apart = same;
  apart.attention_flops_per_s = 8e9;
  EXPECT_NEAR(estimate_units(model_of(), longer, apart).of("block").forward_s,
              estimate_units(model_of(), longer, same).of("block").forward_s, 1e-12);
  longer.tokens = 4800;
  EXPECT_LT(estimate_units(model_of(), longer, apart).of("block").forward_s,
            estimate_units(model_of(), longer, same).of("block").forward_s);
}

TEST(UnitTimes, HaveAGapAfterEachKernelWhateverTheBatch) {
  const EstimateRates rates{.product_flops_per_s = 1e30, .kernel_bytes_per_s = 1e30, .gap_s = 2e-6};
  const UnitSeconds block = estimate_units(model_of(), kPass, rates).of("block");
  EXPECT_GT(block.forward_s, 10e-6);
  EXPECT_GT(block.backward_s, block.forward_s);
  EXPECT_LT(block.backward_s, 100e-6);
}

TEST(UnitTimes, GrowWithTheMicroBatchAndThePaddedVocabulary) {
  const EstimateRates rates{.product_flops_per_s = 1e12, .kernel_bytes_per_s = 1e30};
  const UnitTimes one = estimate_units(model_of(), kPass, rates);
  PassShape larger = kPass;
  larger.micro_batch *= 5;
  const UnitTimes five = estimate_units(model_of(), larger, rates);
  EXPECT_NEAR(five.of("block").backward_s, 5 * one.of("block").backward_s, 1e-15);
  const EstimateRates slow{.product_flops_per_s = 1e12, .kernel_bytes_per_s = 1e11};
  EXPECT_NEAR(estimate_units(model_of(), larger, slow).of("embedding").backward_s,
              5 * estimate_units(model_of(), kPass, slow).of("embedding").backward_s, 1e-15);
  const UnitTimes padded = estimate_units(model_of(200), kPass, rates);
  EXPECT_NEAR(padded.of("head").forward_s, 2 * one.of("head").forward_s, 1e-15);
  EXPECT_EQ(padded.of("block").forward_s, one.of("block").forward_s);
}

}  // namespace
}  // namespace sluice::engine
