#include "tools/cli/chat_input.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::tools {
namespace {

using Kind = ChatInput::Kind;
using Entries = std::vector<std::pair<Kind, std::string>>;

// The entries of a pipe's content; the last one is kEnd.
Entries entries_of(const std::string& text) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  std::thread writer([&] {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count = write(ends[1], text.data() + sent, text.size() - sent);
      ASSERT_GT(count, 0);
      sent += static_cast<std::size_t>(count);
    }
    close(ends[1]);
  });
  ChatInput input(ends[0], [] { return false; });
  EXPECT_FALSE(input.is_terminal());
  Entries entries;
  do {
    ChatInput::Entry entry = input.next();
    entries.emplace_back(entry.kind, std::move(entry.text));
  } while (entries.back().first != Kind::kEnd);
  writer.join();
  close(ends[0]);
  return entries;
}

Entries with_end(Entries entries) {
  entries.emplace_back(Kind::kEnd, "");
  return entries;
}

TEST(ChatInput, TakesEachLineAsAMessageOrACommand) {
  EXPECT_EQ(entries_of("What is it?\r\n\n \t\n/clear \n  two\nthe end"),
            with_end({{Kind::kMessage, "What is it?"},
                      {Kind::kCommand, "/clear"},
                      {Kind::kMessage, "  two"},
                      {Kind::kMessage, "the end"}}));
  EXPECT_EQ(entries_of(""), with_end({}));
}

TEST(ChatInput, TakesQuotedLinesAsOneMessage) {
  EXPECT_EQ(entries_of("\"\"\"\na\n\n/clear\n\"\"\" \nb\n"),
            with_end({{Kind::kMessage, "a\n\n/clear"}, {Kind::kMessage, "b"}}));
  EXPECT_EQ(entries_of("\"\"\"/usr\"\"\"\n\"\"\" x\ny\"\"\"\n\"\"\"\"\"\"\n"),
            with_end({{Kind::kMessage, "/usr"}, {Kind::kMessage, " x\ny"}}));
  EXPECT_EQ(entries_of("\"\"\"a\nb"), with_end({{Kind::kMessage, "a\nb"}}));
  EXPECT_EQ(entries_of("say \"\"\"\n"), with_end({{Kind::kMessage, "say \"\"\""}}));
}

TEST(ChatInput, DropsAMessageThatIsTooLongAndContinuesAfterIt) {
  const std::string most(ChatInput::kMostBytes, 'x');
  EXPECT_EQ(entries_of(most + "\n"), with_end({{Kind::kMessage, most}}));
  for (const std::string& text :
       {most + "x\n", most + most + "\n", "\"\"\"\n" + most + "x\n\"\"\"\n",
        "\"\"\"\n" + most + "\n" + most + "\n\"\"\"\n"})
    EXPECT_EQ(entries_of(text + "after\n"),
              with_end({{Kind::kTooLong, ""}, {Kind::kMessage, "after"}}));
  EXPECT_EQ(entries_of("\"\"\"\n" + most + "\n\"\"\"\n"), with_end({{Kind::kMessage, most}}));
}

TEST(ChatInput, SeesTheEndOfATooLongMessageWhereverItsPiecesAreCut) {
  for (std::size_t more = 4088; more < 4104; ++more) {
    const std::string text =
        "\"\"\"" + std::string(ChatInput::kMostBytes - 3 + more, 'x') + "\"\"\"\nafter\n";
    EXPECT_EQ(entries_of(text), with_end({{Kind::kTooLong, ""}, {Kind::kMessage, "after"}}))
        << more;
  }
}

TEST(ChatInput, EndsWhenItIsStoppedAndTakesNothingHalf) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::string begun = "\"\"\"half a mess";
  ASSERT_EQ(write(ends[1], begun.data(), begun.size()), static_cast<ssize_t>(begun.size()));
  int asked = 0;
  ChatInput input(ends[0], [&asked] { return ++asked > 2; });
  EXPECT_EQ(input.next().kind, Kind::kEnd);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace sluice::tools
