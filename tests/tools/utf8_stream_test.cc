#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/cli/text_tokens.h"

namespace sluice::tools {
namespace {

std::vector<std::string> pieces(const std::string& bytes) {
  Utf8Stream stream;
  std::vector<std::string> pieces;
  for (const char byte : bytes) pieces.push_back(stream.push(static_cast<unsigned char>(byte)));
  pieces.push_back(stream.finish());
  return pieces;
}

std::string whole(const std::string& bytes) {
  std::string text;
  for (const std::string& piece : pieces(bytes)) text += piece;
  return text;
}

TEST(Utf8Stream, GivesEachCharacterWithItsLastByte) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("aé"), (Pieces{"a", "", "é", ""}));
  EXPECT_EQ(pieces("€"), (Pieces{"", "", "€", ""}));
  EXPECT_EQ(pieces("🦆!"), (Pieces{"", "", "", "🦆", "!", ""}));
  EXPECT_EQ(pieces("\xE2\x82"), (Pieces{"", "", "\uFFFD"}));
}

// Expected values: the results of Python's bytes.decode(errors="replace").
TEST(Utf8Stream, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(whole("\xFF\xFE"), "\uFFFD\uFFFD");
  EXPECT_EQ(whole("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(whole("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(whole("\xE2\x82z"), "\uFFFDz");                          // cut short
  EXPECT_EQ(whole("\xE2\xE2\x82\xAC"), "\uFFFD€");                   // followed by a new character
  EXPECT_EQ(whole("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(whole("\xF0\x9F\xA6"), "\uFFFD");
}

}  // namespace
}  // namespace sluice::tools
