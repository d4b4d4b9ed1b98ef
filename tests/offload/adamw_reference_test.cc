// 100 steps compared with AdamW in float64, written from the documentation of torch.optim.AdamW and
// Adam.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "aio/executor.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/half.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/moment_rounding.h"
#include "tests/offload/adamw_case.h"

namespace sluice::offload {
namespace {

constexpr std::size_t kElements = 20'000;
constexpr int kSteps = 100;
constexpr double kLr = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.1;

struct Reference {
  std::vector<double> p, m, v;
};

void reference_step(Reference& x, const std::vector<double>& grad, int t, bool l2) {
  const double c1 = 1 - std::pow(kBeta1, t);
  const double c2 = 1 - std::pow(kBeta2, t);
  for (std::size_t i = 0; i < kElements; ++i) {
    const double g = grad[i] + (l2 ? kDecay * x.p[i] : 0);
    if (!l2) x.p[i] -= kLr * kDecay * x.p[i];
    x.m[i] = kBeta1 * x.m[i] + (1 - kBeta1) * g;
    x.v[i] = kBeta2 * x.v[i] + (1 - kBeta2) * g * g;
    x.p[i] -= kLr * (x.m[i] / c1) / (std::sqrt(x.v[i] / c2) + kEps);
  }
}

double relative_distance(const std::vector<float>& x, const std::vector<double>& reference) {
  double distance = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    distance += (x[i] - reference[i]) * (x[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(distance / norm);
}

class AdamwReference : public testing::TestWithParam<AdamwKind> {};

TEST_P(AdamwReference, IsFollowedForAHundredSteps) {
  const AdamwKind kind = GetParam();
  HostileNumbers numbers(99);
  AdamwCase problem(kElements);
  Reference reference{std::vector<double>(kElements), std::vector<double>(kElements),
                      std::vector<double>(kElements)};
  for (std::size_t i = 0; i < kElements; ++i) {
    problem.master[i] = numbers.ordinary();
    const SplitMaster halves = split_master(problem.master[i]);
    problem.param16[i] = halves.hi;
    problem.lo[i] = halves.lo;
    reference.p[i] = problem.master[i];
  }
  const auto executor = aio::make_executor(2);
  std::vector<double> grad(kElements);
  for (int t = 1; t <= kSteps; ++t) {
    // Gradients are scaled, and a quarter too long.
    constexpr double kScale = 128, kNorm = 1.25, kClip = 1;
    for (std::size_t i = 0; i < kElements; ++i) {
      problem.grad32[i] = numbers.ordinary();
      float value = problem.grad32[i];
      if (kind.grad == GradType::kBf16)
        value = float_from_bf16(problem.grad16[i] = bf16_from_float(value));
      if (kind.grad == GradType::kFp16)
        value = float_from_fp16(problem.grad16[i] = fp16_from_float(value));
      grad[i] = value / kScale / (kNorm / kClip);
    }
    const auto scalars = make_adamw_scalars({.learning_rate = kLr,
                                             .beta1 = kBeta1,
                                             .beta2 = kBeta2,
                                             .eps = kEps,
                                             .weight_decay = kDecay,
                                             .adam_w_mode = !kind.l2,
                                             .step = t,
                                             .loss_scale = kScale,
                                             .grad_norm = kNorm - 1e-6,
                                             .clip_norm = kClip});
    AdamwArrays arrays = problem.arrays(kind);
    arrays.moment_keys = moment_keys({.run_seed = 1, .step = t}, 0);
    adamw_step(**executor, best_isa(), *scalars, arrays, kElements);
    reference_step(reference, grad, t, kind.l2);
  }
  if (kind.form == ParamForm::kSplit)
    for (std::size_t i = 0; i < kElements; ++i)
      problem.master[i] = join_master({.hi = problem.param16[i], .lo = problem.lo[i]});
  const bool narrow = kind.moments == ElementType::kBf16;
  if (narrow) {
    std::transform(problem.m16.begin(), problem.m16.end(), problem.m.begin(), float_from_bf16);
    std::transform(problem.v16.begin(), problem.v16.end(), problem.v.begin(), float_from_bf16);
  }
  // bf16 moments have the rounding errors of the previous steps, each at most 2^-7 of the moment.
  // With L2 their effect on p returns in the gradient.
  const double p_limit = !narrow ? 1e-6 : kind.l2 ? 0.03 : 0.005;
  const double moment_limit = !narrow ? 1e-6 : kind.l2 ? 0.05 : 0x1p-6;
  EXPECT_LT(relative_distance(problem.master, reference.p), p_limit);
  EXPECT_LT(relative_distance(problem.m, reference.m), moment_limit);
  EXPECT_LT(relative_distance(problem.v, reference.v), moment_limit);
  RecordProperty("p_distance", std::to_string(relative_distance(problem.master, reference.p)));

  // The 16-bit parameter equals torch's cast of the master, except for bf16's ties.
  for (std::size_t i = 0; i < kElements && kind.form != ParamForm::kFp32; ++i) {
    const float p = problem.master[i];
    const bool fp16 = kind.form == ParamForm::kFp32AndFp16;
    const bool tie = (std::bit_cast<std::uint32_t>(p) & 0xFFFF) == 0x8000;
    if (!fp16 && tie) continue;
    ASSERT_EQ(problem.param16[i], fp16 ? fp16_from_float(p) : bf16_from_float(p)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdamwReference, testing::ValuesIn(all_adamw_kinds()),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace sluice::offload
