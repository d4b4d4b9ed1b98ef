#include "aio/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace sluice {
namespace {

TEST(Text, ShowsNumbersAsAStreamWithSoManyDigitsDoes) {
  for (const double value : {0.0, -0.0, 1.0, 0.1, 1e-8, 123456.0, 1234567.0, 2.0 / 3, 1e300,
                             double{NAN}, std::numeric_limits<double>::infinity()}) {
    for (const int digits : {4, 6, 9, 10, kAllDigits}) {
      std::ostringstream stream;
      stream.precision(digits);
      stream << value;
      EXPECT_EQ(significant(value, digits), stream.str());
    }
  }
  EXPECT_EQ(significant(1234567), "1.23457e+06");
  EXPECT_EQ(significant(0.1, kAllDigits), "0.10000000000000001");
}

TEST(Text, ShowsShares) {
  EXPECT_EQ(percent(0.2526), "25.3%");
  EXPECT_EQ(percent(0.2526, 0), "25%");
  EXPECT_EQ(percent(-0.5), "-50.0%");
  EXPECT_EQ(percent(1e306, 0).size(), 310U);
}

TEST(Text, CountsAndJoins) {
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(1U, "token"), "1 token");
  EXPECT_EQ(counted(std::uint64_t{2}, "token"), "2 tokens");
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined(std::vector<std::string>{"a", "b", "c"}), "a b c");
  EXPECT_EQ(joined(std::vector<std::string>{"a", "b"}, " and "), "a and b");
}

TEST(Text, QuotesWhatAShellWouldTakeApart) {
  EXPECT_EQ(shell_word("/a/b-c_1.2@x%y+z=1:2,3"), "/a/b-c_1.2@x%y+z=1:2,3");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("two words"), "'two words'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
}

TEST(PrintableText, EscapesWhatWouldChangeATerminalAndNothingElse) {
  EXPECT_EQ(printable("\x1b[2Jx\r\b\x7f"), "\\x1b[2Jx\\x0d\\x08\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(printable("\u009b31m"), "\\x9b31m");  // CSI in one character
  EXPECT_EQ(printable("\u202eevil\u2066\ufeff\u200b\u2028"),
            "\\u202eevil\\u2066\\ufeff\\u200b\\u2028");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
  const std::string harmless =
      "Grüße, 你好, \U0001f600, क्‍ष, می‌خواهم, \\x1b";
  EXPECT_EQ(printable(harmless), harmless);
  EXPECT_EQ(printable("a\tb\nc", ""), "a\\x09b\\x0ac");
}

TEST(PrintableText, ShowsWhatIsNotUtf8ByteByByte) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");   // an overlong control character
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\ud800");  // half of a surrogate pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");
}

}  // namespace
}  // namespace sluice
