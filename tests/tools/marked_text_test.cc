#include "tools/cli/marked_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::tools {
namespace {

std::string shown(const std::vector<TextSegment>& segments, Marks marks = Marks::kBrackets) {
  return marked_lines(segments, marks);
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
