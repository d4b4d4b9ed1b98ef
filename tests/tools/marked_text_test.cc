#include "tools/cli/marked_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::tools {
namespace {

std::string shown(const std::vector<TextSegment>& segments, Marks marks = Marks::kBrackets) {
  return marked_lines(segments, marks);
}

TEST(MarkedText, EscapesWhatWouldChangeATerminalAndNothingElse) {
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
}

TEST(MarkedText, ShowsWhatIsNotUtf8ByteByByte) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");   // an overlong control character
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\ud800");  // half of a surrogate pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");
}

TEST(MarkedText, PutsBracketsThatTextCannotHave) {
  EXPECT_EQ(shown({{"a ", false}, {"b\nc", true}, {"d", false}}), "  a \u27e6b\n  c\u27e7d\n");
  EXPECT_EQ(shown({{"a \u27e7 b", true}}), "  \u27e6a \\u27e7 b\u27e7\n");
  EXPECT_EQ(shown({{"b\n", true}}), "  \u27e6b\n  \u27e7\n");
}

TEST(MarkedText, ColoursEachLineByItself) {
  EXPECT_EQ(shown({{"a", false}, {"b\n\nc", true}, {"\n", false}}, Marks::kColour),
            "  a\033[32mb\033[0m\n\n  \033[32mc\033[0m\n");
  EXPECT_EQ(shown({{"\n", true}, {"", true}}, Marks::kColour), "\n");
}

TEST(MarkedText, NoLineCanBeTakenForAHeading) {
  EXPECT_EQ(shown({{"--- sample 2 of 3\n[document 7]", false}}),
            "  --- sample 2 of 3\n  [document 7]\n");
  EXPECT_EQ(shown({}), "  \n");
}

}  // namespace
}  // namespace sluice::tools
