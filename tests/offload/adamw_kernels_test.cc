// All kernels return the oracle's bits.
#include "offload/adamw/adamw_kernels.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "offload/adamw/adamw.h"
#include "offload/adamw/isa.h"
#include "tests/offload/adamw_case.h"
#include "tests/sanitized.h"

namespace sluice::offload {
namespace {

struct VectorKernel {
  Isa isa;
  AdamwKernel* kernel;
};
constexpr VectorKernel kVectorKernels[] = {{Isa::kAvx2, adamw_avx2}, {Isa::kAvx512, adamw_avx512}};

// Compares `chunks` new cases of `elements` elements; returns the first difference as text.
std::string compare(const AdamwKind& kind, std::uint64_t first_seed, std::uint64_t chunks,
                    std::size_t elements) {
  const AdamwCase empty(elements);
  AdamwCase before = empty, expected = empty, actual = empty;
  for (std::uint64_t seed = first_seed; seed < first_seed + chunks; ++seed) {
    before.fill(seed);
    const AdamwScalars scalars = adamw_settings(static_cast<int>(seed % kAdamwSettings), kind.l2);
    expected = before;
    adamw_scalar(scalars, expected.arrays(kind), 0, elements);
    for (const auto& [isa, kernel] : kVectorKernels) {
      if (!missing_for(isa).empty()) continue;
      actual = before;
      kernel(scalars, actual.arrays(kind), 0, elements);
      const std::string difference = expected.difference(actual);
      if (!difference.empty())
        return name_of(kind) + ", " + std::string(to_string(isa)) + ", seed " +
               std::to_string(seed) + ": " + difference;
    }
  }
  return "";
}

class AdamwKernels : public testing::TestWithParam<AdamwKind> {};

TEST_P(AdamwKernels, ReturnTheSameBitsForHostileNumbers) {
  EXPECT_EQ(compare(GetParam(), 1, kAdamwSettings * 16 / sweep_stride(8), 16 * 1024), "");
}

TEST_P(AdamwKernels, ReturnTheSameBitsForEveryLengthAndOffset) {
  constexpr std::size_t kLongest = 200;
  AdamwCase before(kLongest + 8);
  before.fill(7);
  const AdamwScalars scalars = adamw_settings(3, GetParam().l2);
  for (const auto& [isa, kernel] : kVectorKernels) {
    if (!missing_for(isa).empty()) continue;
    for (std::size_t length = 0; length <= kLongest; ++length) {
      const std::size_t offset = length % 5;
      AdamwCase expected = before, actual = before;
      adamw_scalar(scalars, expected.arrays(GetParam(), offset), 0, length);
      kernel(scalars, actual.arrays(GetParam(), offset), 0, length);
      ASSERT_EQ(expected.difference(actual), "") << to_string(isa) << ", length " << length;
      // In two parts: a kernel changes elements [begin, end) and nothing else.
      AdamwCase parts = before;
      kernel(scalars, parts.arrays(GetParam(), offset), length / 3, length);
      kernel(scalars, parts.arrays(GetParam(), offset), 0, length / 3);
      ASSERT_EQ(expected.difference(parts), "") << to_string(isa) << ", length " << length;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdamwKernels, testing::ValuesIn(all_adamw_kinds()),
                         [](const auto& test) { return name_of(test.param); });

TEST(LongAdamwKernels, ReturnTheSameBitsForAHundredMillionElementsOfEachKind) {
  constexpr std::uint64_t kElements = 100'000'000;
  constexpr std::size_t kChunk = 16 * 1024;
  const auto workers = std::max(1U, std::thread::hardware_concurrency());
  const std::uint64_t chunks = kElements / kChunk / workers + 1;
  for (const AdamwKind& kind : all_adamw_kinds()) {
    std::vector<std::string> differences(workers);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < workers; ++t)
      threads.emplace_back(
          [&, t] { differences[t] = compare(kind, 1000 + t * chunks, chunks, kChunk); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& difference : differences) EXPECT_EQ(difference, "");
  }
}

}  // namespace
}  // namespace sluice::offload
