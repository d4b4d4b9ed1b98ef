#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/session/show_share.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kBeginNs = 5 * ShareLog::kSecondNs;

// Calls ten times a second for this many seconds, with steady progress.
std::vector<std::string> lines_in(std::int64_t seconds) {
  ShareLog log("reading");
  std::vector<std::string> lines;
  for (std::int64_t tenth = 0; tenth <= seconds * 10; ++tenth) {
    const auto line =
        log.line_at(kBeginNs + tenth * (ShareLog::kSecondNs / 10),
                    static_cast<std::uint64_t>(tenth), static_cast<std::uint64_t>(seconds) * 10);
    if (line) lines.push_back(*line);
  }
  return lines;
}

TEST(ShareLog, SaysNothingOfWhatIsQuick) {
  EXPECT_TRUE(lines_in(1).empty());
  EXPECT_TRUE(lines_in(10).empty());  // ends when the first line would be due
}

TEST(ShareLog, SaysHowFarAndHowLongFewTimes) {
  EXPECT_EQ(lines_in(100), (std::vector<std::string>{"reading: 10% after 10 s, 90 s left",
                                                     "reading: 40% after 40 s, 60 s left",
                                                     "reading: 70% after 70 s, 30 s left"}));
}

TEST(ShareLog, WaitsForTheFirstBytes) {
  ShareLog log("reading");
  EXPECT_FALSE(log.line_at(0, 0, 8));
  EXPECT_FALSE(log.line_at(60 * ShareLog::kSecondNs, 0, 8));
  EXPECT_EQ(log.line_at(61 * ShareLog::kSecondNs, 2, 8), "reading: 25% after 61 s, 183 s left");
  EXPECT_FALSE(log.line_at(62 * ShareLog::kSecondNs, 0, 0));
}

}  // namespace
}  // namespace sluice::tools
