#include "offload/adamw/grad_stats.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <limits>
#include <vector>

#include "offload/adamw/half.h"
#include "tests/offload/hostile_numbers.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kBlock = kSumBlockElements;
constexpr GradType kTypes[] = {GradType::kFp32, GradType::kBf16, GradType::kFp16};

// The definition: a tree over a block padded with zeros.
double tree(const std::vector<double>& squares, std::uint64_t first, std::uint64_t size) {
  if (size == 1) return first < squares.size() ? squares[first] : 0;
  return tree(squares, first, size / 2) + tree(squares, first + size / 2, size / 2);
}
double unit_sum(const std::vector<double>& squares) {
  double sum = 0;
  for (std::uint64_t block = 0; block < squares.size(); block += kBlock)
    sum += tree(squares, block, kBlock);
  return sum;
}

std::uint16_t cast_of(GradType to, float x) {
  return to == GradType::kBf16 ? bf16_from_float(x) : fp16_from_float(x);
}
double square_of(GradType to, float x) {
  double value = x;
  if (to == GradType::kBf16) value = float_from_bf16(bf16_from_float(x));
  if (to == GradType::kFp16) value = float_from_fp16(fp16_from_float(x));
  return value * value;
}

// Gradients that stay finite in all types, from fp32's denormals to fp16's largest numbers.
std::vector<float> finite_gradient(std::size_t elements, std::uint64_t seed) {
  HostileNumbers numbers(seed);
  std::vector<float> grad(elements);
  for (float& x : grad) {
    x = numbers.hostile();
    if (!(std::fabs(x) < 65504)) x = numbers.ordinary();
  }
  return grad;
}

std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (missing_for(isa).empty()) isas.push_back(isa);
  return isas;
}

class GradStats : public testing::Test {
 protected:
  // Sums elements [begin, end) of `grad`, which is a whole unit's gradient, separately from all
  // others.
  SquareSum sum_of(const std::vector<float>& grad, GradType to, std::uint64_t begin,
                   std::uint64_t end, Isa isa = best_isa(), int threads = 1) {
    out_.resize(grad.size());
    SquareSum sum(end - begin);
    sum.reset(begin);
    const auto executor = aio::make_executor(threads);
    cast_and_sum(**executor, isa,
                 {.grad = grad.data() + begin,
                  .to = to,
                  .out = out_.data() + begin,
                  .elements = end - begin},
                 sum);
    return sum;
  }
  std::vector<std::uint16_t> out_;
};

TEST_F(GradStats, SumsByTheTreeWithEveryIsaAndNumberOfThreads) {
  for (const std::size_t elements :
       {1UL, 63UL, 64UL, 4097UL, kBlock - 1, kBlock, 5 * kBlock + 777}) {
    const std::vector<float> grad = finite_gradient(elements, elements);
    for (const GradType to : kTypes) {
      std::vector<double> squares;
      for (const float x : grad) squares.push_back(square_of(to, x));
      const double expected = unit_sum(squares);
      for (const Isa isa : isas_here())
        for (int threads = 1; threads <= 4; ++threads) {
          const SquareSum sum = sum_of(grad, to, 0, elements, isa, threads);
          EXPECT_EQ(sum.total(), expected) << to_string(isa) << ", " << elements;
          EXPECT_TRUE(sum.finite());
        }
      double plain = 0;
      for (const double square : squares) plain += square;
      EXPECT_NEAR(expected, plain, 1e-12 * plain);
    }
  }
}

TEST_F(GradStats, CastsToTheNearestWithEveryIsa) {
  const std::size_t elements = kBlock + 4321;
  HostileNumbers numbers(5);
  std::vector<float> grad(elements);
  for (float& x : grad) x = numbers.hostile();
  for (const GradType to : {GradType::kBf16, GradType::kFp16})
    for (const Isa isa : isas_here())
      for (const std::uint64_t begin : {0U, 17U}) {
        sum_of(grad, to, begin, elements, isa, 2);
        for (std::size_t i = begin; i < elements; ++i)
          ASSERT_EQ(out_[i], cast_of(to, grad[i]))
              << to_string(isa) << " " << std::hexfloat << grad[i];
      }
}

TEST_F(GradStats, GivesTheSameSumHoweverTheUnitIsCut) {
  const std::size_t elements = 3 * kBlock + 12345;
  const std::vector<float> grad = finite_gradient(elements, 8);
  const SquareSum whole = sum_of(grad, GradType::kBf16, 0, elements);
  HostileNumbers numbers(21);
  for (int round = 0; round < 60; ++round) {
    // Pieces from single elements to whole blocks; sub-groups of shards of the unit.
    SquareSum unit(elements);
    unit.reset(0);
    const std::uint64_t longest = std::uint64_t{1} << (7 + round % 11);
    while (unit.end() < elements) {
      SquareSum shard(elements);
      shard.reset(unit.end());
      for (int i = 0; i < 5 && shard.end() < elements; ++i) {
        const std::uint64_t end =
            std::min<std::uint64_t>(elements, shard.end() + 1 + numbers.bits() % longest);
        const SquareSum next =
            sum_of(grad, GradType::kBf16, shard.end(), end, isas_here()[i % isas_here().size()]);
        shard.append_sums(next.end() - next.begin(), next.sums());
      }
      EXPECT_EQ(shard.sums().size(), sum_node_count(shard.begin(), shard.end() - shard.begin()));
      // Like between ranks: only the numbers are sent.
      unit.append_sums(shard.end() - shard.begin(), shard.sums());
    }
    EXPECT_EQ(unit.total(), whole.total());
    EXPECT_EQ(std::vector(unit.sums().begin(), unit.sums().end()),
              std::vector(whole.sums().begin(), whole.sums().end()));
  }
}

TEST_F(GradStats, HoldsTheMostNodesThatARangeCanHave) {
  const std::uint64_t begin = 1, end = 3 * kBlock - 1;
  EXPECT_EQ(sum_node_count(begin, end - begin), kMaxSideNodes + 1);
  const std::vector<float> grad = finite_gradient(end, 4);
  EXPECT_EQ(sum_of(grad, GradType::kFp32, begin, end).sums().size(), kMaxSideNodes + 1);
}

TEST_F(GradStats, SeesOneElementThatIsNotFiniteWhereverItIs) {
  const std::size_t elements = 2 * kBlock + 200;
  const std::uint64_t begin = 5;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> good = finite_gradient(elements, 6);
  for (const std::uint64_t at : {begin, begin + 70, kBlock, 2 * kBlock - 1, 2 * kBlock + 199})
    for (const float bad : {kInf, -kInf, kNan, -kNan, 65520.0F})
      for (const GradType to : kTypes)
        for (const Isa isa : isas_here()) {
          std::vector<float> grad = good;
          grad[at] = bad;
          const bool expected = bad == 65520.0F && to != GradType::kFp16;
          const SquareSum sum = sum_of(grad, to, begin, elements, isa, 2);
          ASSERT_EQ(sum.finite(), expected) << bad << " at " << at << ", " << to_string(isa);
        }
}

TEST_F(GradStats, TellsInfinityFromNanInTheTotal) {
  std::vector<float> grad = finite_gradient(300, 6);
  grad[77] = -std::numeric_limits<float>::infinity();
  for (const Isa isa : isas_here())
    EXPECT_EQ(sum_of(grad, GradType::kFp32, 0, 300, isa).total(),
              std::numeric_limits<double>::infinity());
  grad[200] = std::bit_cast<float>(0xFFFFFFFFU);
  for (const Isa isa : isas_here())
    EXPECT_EQ(std::bit_cast<std::uint64_t>(sum_of(grad, GradType::kFp32, 0, 300, isa).total()),
              0x7FF8000000000000U);
}

TEST_F(GradStats, TakesTheLargestFloatsWithoutOverflow) {
  const std::vector<float> grad(kBlock, std::numeric_limits<float>::max());
  const SquareSum sum = sum_of(grad, GradType::kFp32, 0, kBlock);
  EXPECT_TRUE(sum.finite());
  EXPECT_EQ(sum.total(), std::ldexp(double{grad[0]} * double{grad[0]}, 16));
}

TEST_F(GradStats, ComputesWithDefaultsWhateverMxcsrSays) {
  const std::size_t elements = kBlock + 100;
  const std::vector<float> grad = finite_gradient(elements, 12);
  for (const GradType to : kTypes)
    for (const Isa isa : isas_here()) {
      const SquareSum expected = sum_of(grad, to, 3, elements, isa);
      const std::vector<std::uint16_t> expected_out = out_;
      const unsigned own = _mm_getcsr();
      constexpr unsigned kFlushAndRoundUp = 0x1F80 | 0x8040 | 0x4000;
      _mm_setcsr(kFlushAndRoundUp);
      const SquareSum actual = sum_of(grad, to, 3, elements, isa);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(own);
      EXPECT_EQ(after & ~0x3FU, kFlushAndRoundUp);
      EXPECT_EQ(std::vector(actual.sums().begin(), actual.sums().end()),
                std::vector(expected.sums().begin(), expected.sums().end()));
      EXPECT_EQ(out_, expected_out);
    }
}

}  // namespace
}  // namespace sluice::offload
