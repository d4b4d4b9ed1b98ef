#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/data/token_corpus.h"
#include "engine/data/token_sidecar.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::data {
namespace {

using testing::ElementsAre;
using testing::Pair;

class TokenCensusTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("some.bin"); }

  TokenFile opened() const {
    auto file = TokenFile::open(path(), {.type = TokenType::kUint16});
    EXPECT_OK(file);
    return *std::move(file);
  }
  TokenCensus census(std::optional<std::int64_t> end = {}) const {
    const auto taken = take_census(opened(), end, {});
    EXPECT_OK(taken);
    return *taken;
  }

  aio::TemporaryFolder folder_;
};

TEST_F(TokenCensusTest, OfOneTextEveryTokenButTheFirstIsATarget) {
  write_file(path(), bytes_of(std::vector<std::uint16_t>{5, 900, 7, 900, 2}));
  const TokenCensus all = census();
  EXPECT_EQ(all.tokens, 5U);
  EXPECT_EQ(all.targets, 4U);
  EXPECT_EQ(all.largest, 900U);
  EXPECT_EQ(all.largest_at, 1U);
  EXPECT_TRUE(all.lengths.empty());
}

TEST_F(TokenCensusTest, ATokenThatEndsTextsPartsItIntoDocuments) {
  write_file(path(), bytes_of(std::vector<std::uint16_t>{1, 1, 9, 9, 1, 1, 1, 9, 1, 1}));
  EXPECT_THAT(census(9).lengths, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(census(8).lengths, ElementsAre(10));
}

// Longer than one read, with documents that cross its end.
TEST_F(TokenCensusTest, TargetsAreWhatTheMaskSaysButForTheFirstOfADocument) {
  constexpr std::uint64_t kTokens = 200'001;
  std::vector<std::uint64_t> starts;
  for (std::uint64_t at = 0; at < kTokens; at += 997) starts.push_back(at);
  starts.push_back(kTokens);
  std::vector<std::uint8_t> mask((kTokens + 7) / 8);
  std::uint64_t trained = 0, targets = 0, without = 0, in_document = 0;
  for (std::uint64_t at = 0, document = 0; at < kTokens; ++at) {
    if (at == starts[document + 1]) {
      without += in_document == 0 ? 1 : 0;
      in_document = 0;
      ++document;
    }
    const bool first = at == starts[document];
    if (first ? document % 2 == 1 : document % 5 == 0 || at % 3 != 0) continue;
    mask[at / 8] = static_cast<std::uint8_t>(mask[at / 8] | (1U << (at % 8)));
    ++trained;
    targets += first ? 0 : 1;
    in_document += first ? 0 : 1;
  }
  without += in_document == 0 ? 1 : 0;
  write_file(path(), bytes_of(counting_tokens(kTokens)));
  write_file(path() + ".documents", bytes_of(starts));
  write_file(path() + ".mask", bytes_of(mask));
  write_text(path() + ".json",
             R"({"format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": )" +
                 std::to_string(kTokens) + R"(, "vocab_size": 60000, "documents": )" +
                 std::to_string(starts.size() - 1) + R"(, "trained_tokens": )" +
                 std::to_string(trained) + R"(, "tokenizer": {"kind": "file"}})");
  std::uint64_t shown = 0;
  const auto taken =
      take_census(opened(), 9, [&](std::uint64_t done, std::uint64_t) { shown = done; });
  ASSERT_OK(taken);
  EXPECT_EQ(shown, kTokens);
  EXPECT_LT(targets, trained);
  EXPECT_EQ(taken->targets, targets);
  EXPECT_EQ(taken->documents_without_target, without);
  EXPECT_EQ(taken->lengths.size(), starts.size() - 1);
  EXPECT_EQ(taken->lengths.front(), kTokens % 997);
  EXPECT_EQ(taken->lengths.back(), 997U);
  const TokenFile file = opened();
  for (const std::uint64_t token : {std::uint64_t{0}, std::uint64_t{996}, std::uint64_t{997},
                                    std::uint64_t{100'000}, kTokens - 1})
    EXPECT_EQ(file.documents()->holding(token), token / 997);
}

TEST_F(TokenCensusTest, AFileThatBecomesShorterIsAnError) {
  write_file(path(), bytes_of(std::vector<std::uint16_t>(1000, 3)));
  const TokenFile file = opened();
  write_file(path(), bytes_of(std::vector<std::uint16_t>(900, 3)));
  const auto taken = take_census(file, {}, {});
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code(), ErrorCode::kEndOfFile);
}

TEST(Histogram, HasARangeForEachOrderOfMagnitude) {
  const auto ranges = [](const std::vector<std::uint64_t>& lengths) {
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> made;
    for (const LengthRange& range : histogram_of(lengths))
      made.emplace_back(range.from, range.to, range.count);
    return made;
  };
  EXPECT_TRUE(ranges({}).empty());
  EXPECT_THAT(ranges({1}), ElementsAre(std::tuple(1, 1, 1)));
  EXPECT_THAT(ranges({3, 3, 4, 7, 17}), ElementsAre(std::tuple(2, 3, 2), std::tuple(4, 7, 2),
                                                    std::tuple(8, 15, 0), std::tuple(16, 31, 1)));
}

TEST(TokenRecord, SaysWhatWasLeftOutTheMostFirst) {
  const TokenRecord record = parse_token_record(
      R"({"source_count": 2, "source_bytes": 77, "documents": 5, "chat": {"train_on": "last"},
          "preparation": {"conversations": 12, "cut": 1, "replaced": 3,
                          "left_out": {"rare": 2, "often": 5, "odd": "x"}}})");
  EXPECT_EQ(record.sources, 2U);
  EXPECT_EQ(record.source_bytes, 77U);
  EXPECT_EQ(record.documents, 5U);
  EXPECT_EQ(record.train_on, "last");
  ASSERT_TRUE(record.preparation);
  EXPECT_EQ(record.preparation->conversations, 12U);
  EXPECT_EQ(record.preparation->cut, 1U);
  EXPECT_EQ(record.preparation->replaced, 3U);
  EXPECT_THAT(record.preparation->left_out, ElementsAre(Pair("often", 5), Pair("rare", 2)));
}

TEST(TokenRecord, IsEmptyWhereNothingIsSaid) {
  for (const char* const text : {"", "oops", "[1]", "{}", R"({"chat": 3, "preparation": "x"})"}) {
    const TokenRecord record = parse_token_record(text);
    EXPECT_FALSE(record.sources || record.documents || record.preparation) << text;
  }
}

}  // namespace
}  // namespace sluice::data
