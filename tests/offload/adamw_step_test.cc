#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <limits>

#include "aio/executor.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/adamw_kernels.h"
#include "tests/offload/adamw_case.h"

namespace sluice::offload {
namespace {

constexpr AdamwKind kSplitKind{GradType::kBf16, ParamForm::kSplit, false};

TEST(AdamwStep, GivesTheOraclesBitsForAnyNumberOfThreads) {
  for (const std::size_t elements : {0U, 1U, 1000U, 32U * 1024, 100'003U, 262'144U}) {
    AdamwCase before(elements);
    before.fill(elements);
    const AdamwScalars scalars = adamw_settings(0, false);
    AdamwCase expected = before;
    adamw_scalar(scalars, expected.arrays(kSplitKind), 0, elements);
    for (int threads = 1; threads <= 4; ++threads) {
      const auto executor = aio::make_executor(threads);
      for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
        if (!missing_for(isa).empty()) continue;
        AdamwCase actual = before;
        adamw_step(**executor, isa, scalars, actual.arrays(kSplitKind), elements);
        ASSERT_EQ(expected.difference(actual), "")
            << elements << " elements, " << threads << " threads, " << to_string(isa);
      }
    }
  }
}

TEST(AdamwStep, ComputesWithDefaultsWhateverMxcsrSaysAndRestoresIt) {
  constexpr unsigned kFlushAndRoundUp = 0x1F80 | 0x8040 | 0x4000;
  constexpr unsigned kRoundDownWithOldFlags = 0x1F80 | 0x2000 | 0x003F;
  constexpr std::size_t kElements = 10'000;
  const auto executor = aio::make_executor(1);
  AdamwCase before(kElements);
  before.fill(11);
  const AdamwScalars scalars = adamw_settings(1, false);
  AdamwCase expected = before;
  adamw_scalar(scalars, expected.arrays(kSplitKind), 0, kElements);
  for (const unsigned hostile : {kFlushAndRoundUp, kRoundDownWithOldFlags})
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (!missing_for(isa).empty()) continue;
      AdamwCase actual = before;
      const unsigned own = _mm_getcsr();
      _mm_setcsr(hostile);
      adamw_step(**executor, isa, scalars, actual.arrays(kSplitKind), kElements);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(own);
      EXPECT_EQ(after, hostile) << to_string(isa);
      EXPECT_EQ(expected.difference(actual), "") << to_string(isa);
    }
  // The test can fail: without the defaults the bits differ.
  AdamwCase wrong = before;
  const unsigned own = _mm_getcsr();
  _mm_setcsr(kFlushAndRoundUp);
  adamw_scalar(scalars, wrong.arrays(kSplitKind), 0, kElements);
  _mm_setcsr(own);
  EXPECT_NE(expected.difference(wrong), "");
}

TEST(AdamwStep, StoresTinyMomentsAsZeroAndKeepsTheSmallestNormal) {
  const auto executor = aio::make_executor(1);
  AdamwScalars keep = adamw_settings(0, false);
  keep.one_minus_beta1 = keep.one_minus_beta2 = 0;  // m and v stay unchanged
  const std::vector<float> moments = {0x1p-126F, 0x1.fffffcp-127F, -0x1p-126F, -0x1p-149F, -0.0F};
  const std::vector<float> stored = {0x1p-126F, 0, -0x1p-126F, 0, 0};
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!missing_for(isa).empty()) continue;
    AdamwCase problem(64);
    for (std::size_t i = 0; i < 64; ++i) {
      problem.m[i] = moments[i % 5];
      problem.v[i] = std::fabs(moments[i % 5]);
    }
    adamw_step(**executor, isa, keep, problem.arrays({GradType::kFp32, ParamForm::kFp32, false}),
               64);
    for (std::size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(problem.m[i], stored[i % 5]) << to_string(isa) << " " << i;
      EXPECT_EQ(problem.v[i], std::fabs(stored[i % 5])) << to_string(isa) << " " << i;
      EXPECT_EQ(std::signbit(problem.m[i]), i % 5 == 2) << to_string(isa) << " " << i;
    }
  }
}

// Computed by hand: with beta1 and beta2 of 0 the moments are the gradient, unscaled and clamped,
// and its square. A NaN is not clamped.
TEST(AdamwStep, ClampsEachUnscaledElementAndLetsNansPass) {
  const auto executor = aio::make_executor(1);
  const AdamwScalars scalars =
      make_adamw_scalars({.beta1 = 0, .beta2 = 0, .loss_scale = 8, .clip_value = 0.25}).value();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> given = {1, 2, 2.125F, -1.5F, -2, -100, kInf, -kInf, kNan, 3e38F, 0};
  const std::vector<float> clamped = {0.125F, 0.25F,  0.25F, -0.1875F, -0.25F, -0.25F,
                                      0.25F,  -0.25F, kNan,  0.25F,    0};
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!missing_for(isa).empty()) continue;
    AdamwCase problem(77);
    for (std::size_t i = 0; i < 77; ++i) problem.grad32[i] = given[i % given.size()];
    adamw_step(**executor, isa, scalars, problem.arrays({GradType::kFp32, ParamForm::kFp32, false}),
               77);
    for (std::size_t i = 0; i < 77; ++i) {
      const float wanted = clamped[i % clamped.size()];
      const bool same = std::isnan(wanted) ? std::isnan(problem.m[i]) : problem.m[i] == wanted;
      EXPECT_TRUE(same) << to_string(isa) << " " << i << ": " << problem.m[i];
      if (std::isnan(wanted)) continue;
      EXPECT_EQ(problem.v[i], wanted * wanted) << to_string(isa);
    }
  }
}

TEST(AdamwScalars, FollowTheirDefinition) {
  const auto s = make_adamw_scalars({.learning_rate = 0.01,
                                     .beta1 = 0.9,
                                     .beta2 = 0.99,
                                     .eps = 1e-6,
                                     .weight_decay = 0.5,
                                     .step = 2,
                                     .loss_scale = 1024,
                                     .grad_norm = 4,
                                     .clip_norm = 0.5});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->grad_scale, static_cast<float>(1 / (1024 * ((4 + 1e-6) / 0.5))));
  EXPECT_EQ(s->one_minus_beta1, 0.1F);
  EXPECT_EQ(s->one_minus_beta2, 0.01F);
  EXPECT_FLOAT_EQ(s->inv_sqrt_c2, static_cast<float>(1 / std::sqrt(0.0199)));
  EXPECT_EQ(s->eps, 1e-6F);
  EXPECT_FLOAT_EQ(s->step_size, static_cast<float>(0.01 / 0.19));
  EXPECT_EQ(s->decay, 0.005F);
  EXPECT_EQ(s->l2, 0.0F);
  EXPECT_FALSE(s->use_l2);
}

TEST(AdamwScalars, LeaveSmallNormsAndUncorrectedMomentsAlone) {
  const auto s = make_adamw_scalars({.weight_decay = 0.1,
                                     .adam_w_mode = false,
                                     .bias_correction = false,
                                     .grad_norm = 0.9,
                                     .clip_norm = 1});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->grad_scale, 1.0F);
  EXPECT_EQ(s->inv_sqrt_c2, 1.0F);
  EXPECT_EQ(s->step_size, 1e-3F);
  EXPECT_EQ(s->decay, 0.0F);
  EXPECT_EQ(s->l2, 0.1F);
  EXPECT_TRUE(s->use_l2);
  EXPECT_EQ(make_adamw_scalars({.grad_norm = 1e9, .clip_norm = 0})->grad_scale, 1.0F);
  EXPECT_EQ(s->grad_limit, std::numeric_limits<float>::infinity());
  EXPECT_EQ(make_adamw_scalars({.clip_value = 0.1})->grad_limit, 0.1F);
}

TEST(AdamwScalars, NameTheOptionThatMakesNoSense) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto complaint = [](const AdamwOptions& options) {
    const auto scalars = make_adamw_scalars(options);
    return scalars.ok() ? std::string() : scalars.error().message();
  };
  EXPECT_NE(complaint({.learning_rate = -1}).find("learning_rate"), std::string::npos);
  EXPECT_NE(complaint({.learning_rate = kNan}).find("learning_rate"), std::string::npos);
  EXPECT_NE(complaint({.beta1 = 1}).find("beta1"), std::string::npos);
  EXPECT_NE(complaint({.beta2 = -0.1}).find("beta2"), std::string::npos);
  EXPECT_NE(complaint({.eps = kInf}).find("eps"), std::string::npos);
  EXPECT_NE(complaint({.weight_decay = -1e-9}).find("weight_decay"), std::string::npos);
  EXPECT_NE(complaint({.step = 0}).find("step"), std::string::npos);
  EXPECT_NE(complaint({.loss_scale = 0}).find("loss_scale"), std::string::npos);
  EXPECT_NE(complaint({.grad_norm = kInf}).find("grad_norm"), std::string::npos);
  EXPECT_NE(complaint({.clip_norm = -1}).find("clip_norm"), std::string::npos);
  EXPECT_NE(complaint({.clip_value = kNan}).find("clip_value"), std::string::npos);
}

TEST(Isa, IsChosenByNameAndRefusedByReason) {
  EXPECT_EQ(choose_isa("auto").value(), best_isa());
  EXPECT_EQ(choose_isa("scalar").value(), Isa::kScalar);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const auto chosen = choose_isa(to_string(isa));
    const std::string missing(missing_for(isa));
    EXPECT_EQ(chosen.ok(), missing.empty());
    if (chosen.ok()) {
      EXPECT_EQ(*chosen, isa);
    } else {
      EXPECT_EQ(chosen.error().code(), ErrorCode::kUnsupported);
      EXPECT_NE(chosen.error().message().find(missing), std::string::npos);
    }
  }
  EXPECT_EQ(choose_isa("sse9").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(choose_isa("").ok());
}

}  // namespace
}  // namespace sluice::offload
