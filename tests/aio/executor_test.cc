#include "aio/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "aio/page_memory.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

TEST(Executor, RunsEachPieceOnceAndReturnsWhenAllAreDone) {
  for (const int threads : {1, 2, 5}) {
    const auto executor = make_executor(threads);
    ASSERT_TRUE(executor.ok());
    EXPECT_EQ((*executor)->threads(), threads);
    for (const int pieces : {0, 1, 3, 1000}) {
      std::vector<int> runs(static_cast<std::size_t>(pieces), 0);
      (*executor)->run(pieces, [&](int piece) { ++runs[static_cast<std::size_t>(piece)]; });
      EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(pieces), 1));
    }
  }
}

TEST(Executor, RefusesACountOutOfRange) {
  EXPECT_FALSE(make_executor(0).ok());
  EXPECT_FALSE(make_executor(1025).ok());
}

TEST(Executor, TouchesAMappingThatIsNoMultipleOfItsPieces) {
  const auto executor = make_executor(2);
  ASSERT_TRUE(executor.ok());
  const auto memory = PageMemory::map(300 * kMiB + 4096, true, executor->get());
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->size_bytes(), 300 * kMiB + 4096);
  EXPECT_EQ(memory->data()[300 * kMiB + 4095], std::byte{0});
}

}  // namespace
}  // namespace sluice::aio
