#include "engine/observe/process_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "aio/page_memory.h"
#include "aio/units.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

const std::string kText =
    "Name:\tVmRSS: 5 kB\nVmPeak:\t    9000 kB\nVmLck:\t      12 kB\nVmPin:\t       0 kB\n"
    "VmHWM:\t    4321 kB\nVmRSS:\t    1234 kB\nThreads:\t1\n";

TEST(ProcessMemory, ReadsTheKernelsLines) {
  const auto memory = parse_process_status(kText);
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  EXPECT_EQ(memory->resident_bytes, 1234U * 1024);
  EXPECT_EQ(memory->peak_resident_bytes, 4321U * 1024);
  EXPECT_EQ(memory->pinned_bytes, 0U);
  EXPECT_EQ(memory->locked_bytes, 12U * 1024);
}

TEST(ProcessMemory, NamesTheLineThatIsMissingOrWrong) {
  const auto message = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    const auto memory = parse_process_status(text);
    return memory.ok() ? "accepted" : memory.error().message();
  };
  EXPECT_THAT(message(kText, "VmHWM", "VmXXX"), HasSubstr("does not say VmHWM"));
  EXPECT_THAT(message(kText, "4321 kB", "4321 MB"), HasSubstr("VmHWM"));
  EXPECT_THAT(message(kText, "4321 kB", "99999999999999999 kB"), HasSubstr("VmHWM"));
  EXPECT_THAT(message(kText, "4321 kB", ""), HasSubstr("VmHWM"));
  EXPECT_FALSE(parse_process_status("").ok());
}

TEST(ProcessMemory, GrowsWithWhatTheProcessTouches) {
  const auto before = process_memory();
  ASSERT_TRUE(before.ok()) << before.error().message();
  const auto pages = aio::PageMemory::map(64 * kMiB, false);
  ASSERT_TRUE(pages.ok());
  const auto after = process_memory();
  ASSERT_TRUE(after.ok());
  EXPECT_GE(after->resident_bytes, before->resident_bytes + 60 * kMiB);
  EXPECT_LT(after->resident_bytes, before->resident_bytes + 200 * kMiB);
  EXPECT_GE(after->peak_resident_bytes, after->resident_bytes);
}

}  // namespace
}  // namespace sluice::engine
