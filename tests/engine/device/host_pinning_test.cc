// Memory that a driver refuses to pin stays usable, is said once, and is counted.
#include "engine/device/host_pinning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/units.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

// A driver that refuses chosen calls.
struct FakeDriver {
  std::set<int> refused;  // numbers of calls, from 0
  int broken = -1;        // the call at which the GPU no longer answers
  int calls = 0;
  std::set<std::byte*> pinned;

  HostPinning::Driver driver() {
    return {.pin = [this](std::span<std::byte> memory) -> Status {
              const int call = calls++;
              if (call == broken) return Error(ErrorCode::kInternal, "an illegal access");
              if (refused.contains(call)) return Error(ErrorCode::kOutOfMemory, "out of memory");
              EXPECT_TRUE(pinned.insert(memory.data()).second);
              return {};
            },
            .unpin =
                [this](std::span<std::byte> memory) {
                  EXPECT_EQ(pinned.erase(memory.data()), 1U) << "unpinned what was not pinned";
                }};
  }
};

class HostPinningTest : public testing::Test {
 protected:
  void SetUp() override {
    log::set_sink([this](log::Level level, std::string_view message) {
      if (level == log::Level::kWarning) warnings_.emplace_back(message);
    });
  }
  void TearDown() override { log::set_sink({}); }

  std::span<std::byte> part(std::size_t index) {
    return std::span(memory_).subspan(index * kPart, kPart);
  }

  static constexpr std::size_t kPart = 4096;
  std::array<std::byte, 4 * kPart> memory_{};
  std::vector<std::string> warnings_;
  FakeDriver fake_;
};

TEST_F(HostPinningTest, CountsWhatIsPinnedAndKnowsItsBytes) {
  HostPinning pinning(fake_.driver());
  EXPECT_TRUE(*pinning.pin(part(1)));
  EXPECT_EQ(pinning.pinned_bytes(), kPart);
  EXPECT_TRUE(pinning.is_pinned(part(1)));
  EXPECT_TRUE(pinning.is_pinned(part(1).subspan(100, 3)));
  EXPECT_FALSE(pinning.is_pinned(part(0)));
  EXPECT_FALSE(pinning.is_pinned(part(2)));
  EXPECT_FALSE(pinning.is_pinned({part(1).data() + 1, kPart})) << "ends one byte after it";
  pinning.unpin(part(1));
  EXPECT_EQ(pinning.pinned_bytes(), 0U);
  EXPECT_FALSE(pinning.is_pinned(part(1)));
  EXPECT_TRUE(fake_.pinned.empty());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(HostPinningTest, ARefusalIsNoErrorAndIsSaidOnce) {
  fake_.refused = {0, 2};
  HostPinning pinning(fake_.driver());
  EXPECT_FALSE(*pinning.pin(part(0)));
  EXPECT_TRUE(*pinning.pin(part(1)));
  EXPECT_FALSE(*pinning.pin(part(2)));
  EXPECT_EQ(pinning.pinned_bytes(), kPart);
  EXPECT_EQ(pinning.refused_bytes(), 2 * kPart);
  ASSERT_EQ(warnings_.size(), 1U);
  for (const char* part : {"4K", "out of memory", "steps are slower", ".wslconfig", "ulimit -l",
                           "sluice probe --refresh"})
    EXPECT_THAT(warnings_[0], HasSubstr(part));
  for (const std::size_t i : {0, 1, 2}) pinning.unpin(part(i));
  EXPECT_EQ(pinning.pinned_bytes(), 0U);
  EXPECT_EQ(pinning.refused_bytes(), 0U);
}

TEST_F(HostPinningTest, SaysNothingWhereARefusalIsExpected) {
  fake_.refused = {0};
  HostPinning pinning(fake_.driver());
  EXPECT_FALSE(*pinning.pin(part(0), HostPinning::OnRefusal::kSayNothing));
  EXPECT_TRUE(warnings_.empty());
  pinning.unpin(part(0));
}

TEST_F(HostPinningTest, AGpuThatDoesNotAnswerIsAnError) {
  fake_.broken = 0;
  HostPinning pinning(fake_.driver());
  const auto pinned = pinning.pin(part(0));
  ASSERT_FALSE(pinned.ok());
  EXPECT_EQ(pinned.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(pinned.error().message(), HasSubstr("an illegal access"));
  EXPECT_EQ(pinning.pinned_bytes() + pinning.refused_bytes(), 0U);
}

// The limit is on the sum, and memory that was unpinned counts no more.
TEST_F(HostPinningTest, ALimitRefusesWithoutTheDriver) {
  HostPinning pinning(fake_.driver(), 2 * kPart);
  EXPECT_TRUE(*pinning.pin(part(0)));
  EXPECT_TRUE(*pinning.pin(part(1)));
  EXPECT_FALSE(*pinning.pin(part(2)));
  EXPECT_EQ(fake_.calls, 2);
  pinning.unpin(part(0));
  EXPECT_TRUE(*pinning.pin(part(3)));
  pinning.set_limit({});
  EXPECT_TRUE(*pinning.pin(part(0)));
  for (const std::size_t i : {0, 1, 2, 3}) pinning.unpin(part(i));
}

// Whichever of its calls is refused, a run's pools are made, and nothing stays pinned.
TEST_F(HostPinningTest, PoolsAreMadeWhicheverCallIsRefused) {
  for (int refused = 0; refused < 4; ++refused) {
    FakeDriver fake{.refused = {refused}};
    HostPinning pinning(fake.driver());
    {
      std::vector<std::unique_ptr<aio::PinnedPool>> pools;
      for (int i = 0; i < 3; ++i) {
        auto pool = aio::PinnedPool::create({.buffer_bytes = kPart,
                                             .capacity = 2,
                                             .lock = aio::MemoryLock::kNone,
                                             .hook = pinning.hook()});
        ASSERT_OK(pool);
        EXPECT_EQ(pinning.is_pinned((*pool)->acquire().bytes()), i != refused);
        pools.push_back(*std::move(pool));
      }
      EXPECT_EQ(pinning.refused_bytes() > 0, refused < 3);
    }
    EXPECT_EQ(pinning.pinned_bytes() + pinning.refused_bytes(), 0U);
    EXPECT_TRUE(fake.pinned.empty());
  }
}

TEST_F(HostPinningTest, ReadsTheLimitOfTests) {
  EXPECT_EQ(*parse_pin_limit(nullptr), std::nullopt);
  EXPECT_EQ(*parse_pin_limit("0"), 0U);
  EXPECT_EQ(*parse_pin_limit("64M"), 64 * kMiB);
  const auto wrong = parse_pin_limit("much");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message(), HasSubstr("SLUICE_TEST_PIN_LIMIT is 'much'"));
}

}  // namespace
}  // namespace sluice::engine
