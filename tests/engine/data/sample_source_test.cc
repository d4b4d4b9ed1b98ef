#include "engine/data/sample_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kNone = kIgnoredSample;

// Documents of the given lengths, whose tokens count up from 100; `trained`: by token.
class SampleSourceTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("chat.bin"); }

  void write(const std::vector<std::uint64_t>& lengths, const std::vector<bool>& trained) {
    std::vector<std::uint64_t> starts = {0};
    for (const std::uint64_t length : lengths) starts.push_back(starts.back() + length);
    std::vector<std::uint16_t> tokens(starts.back());
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{100});
    std::vector<std::uint8_t> mask((tokens.size() + 7) / 8);
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (!trained[i]) continue;
      mask[i / 8] = static_cast<std::uint8_t>(mask[i / 8] | (1U << (i % 8)));
      ++count;
    }
    write_file(path(), bytes_of(tokens));
    write_file(path() + ".documents", bytes_of(starts));
    write_file(path() + ".mask", bytes_of(mask));
    write_text(path() + ".json",
               R"({"format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": )" +
                   std::to_string(tokens.size()) + R"(, "vocab_size": 1000, "documents": )" +
                   std::to_string(lengths.size()) + R"(, "trained_tokens": )" +
                   std::to_string(count) + R"(, "tokenizer": {"kind": "file"}})");
  }

  TokenCorpus corpus() const {
    const std::string paths[] = {path()};
    auto opened = TokenCorpus::open(paths, {});
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return *std::move(opened);
  }
  std::string refusal(ErrorCode code = ErrorCode::kCorrupt) const {
    const auto opened = TokenFile::open(path(), {});
    if (opened.ok()) return "accepted";
    EXPECT_EQ(opened.error().code(), code);
    return opened.error().message();
  }

  struct Read {
    std::vector<std::int64_t> inputs;
    std::vector<std::int64_t> targets;
    std::vector<std::int64_t> positions;
    std::vector<std::int64_t> begins;
    std::int64_t counted;
  };
  static Read read(const SampleSource& source, std::uint64_t sample, std::size_t tokens) {
    Read made{std::vector<std::int64_t>(tokens, -1),
              std::vector<std::int64_t>(tokens, -1),
              std::vector<std::int64_t>(tokens, -1),
              {},
              0};
    SampleRow row{
        .inputs = made.inputs, .targets = made.targets, .positions = made.positions, .begins = {}};
    EXPECT_OK(source.read(sample, row));
    made.begins = row.begins;
    made.counted = row.counted;
    return made;
  }

  aio::TemporaryFolder folder_;
};

TEST_F(SampleSourceTest, ARowHasDocumentsWithTheirMasksPositionsAndRoomThatIsLeft) {
  // The first token of a document is never a target, so its bit has no effect.
  write({4, 3}, {true, false, true, true, false, true, false});
  const TokenCorpus all = corpus();
  const auto source = document_source(all, std::vector<DocumentRange>{{0, 0, 2}},
                                      {.sequence_tokens = 8, .shuffle_seed = {}});
  ASSERT_OK(source);
  ASSERT_EQ((*source)->count(), 1U);
  EXPECT_TRUE((*source)->has_documents());
  const Read row = read(**source, 0, 8);
  EXPECT_THAT(row.inputs, ElementsAre(100, 101, 102, 104, 105, 0, 0, 0));
  EXPECT_THAT(row.targets, ElementsAre(kNone, 102, 103, 105, kNone, kNone, kNone, kNone));
  EXPECT_THAT(row.positions, ElementsAre(0, 1, 2, 0, 1, 0, 1, 2));
  EXPECT_THAT(row.begins, ElementsAre(0, 3, 5));
  EXPECT_EQ(row.counted, 3);
  EXPECT_EQ((*source)->documents(), 2U);
  EXPECT_EQ((*source)->targets(), 3U);
  const std::vector<SamplePlace> places = (*source)->places(0);
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[1].first_token, 4U);
  EXPECT_EQ(places[0].tokens, 4U);
  EXPECT_EQ(places[1].tokens, 3U);
}

TEST_F(SampleSourceTest, DocumentsThatAreLongerAreCutLeftOutOrSplit) {
  write({3, 10}, std::vector<bool>(13, true));
  const TokenCorpus all = corpus();
  const std::vector<DocumentRange> both = {{0, 0, 2}};
  const auto rows = [&](LongDocuments longer) {
    const auto source =
        document_source(all, both, {.sequence_tokens = 4, .shuffle_seed = {}, .longer = longer});
    EXPECT_OK(source);
    std::vector<std::vector<std::int64_t>> targets;
    for (std::uint64_t i = 0; i < (*source)->count(); ++i)
      targets.push_back(read(**source, i, 4).targets);
    return targets;
  };
  EXPECT_THAT(rows(LongDocuments::kDrop), ElementsAre(ElementsAre(101, 102, kNone, kNone)));
  EXPECT_THAT(rows(LongDocuments::kCut),
              ElementsAre(ElementsAre(101, 102, kNone, kNone), ElementsAre(104, 105, 106, 107)));
  // Parts of 4, 4 and 1 predictions: each token but the first is a target once.
  EXPECT_THAT(rows(LongDocuments::kSplit),
              ElementsAre(ElementsAre(101, 102, 112, kNone), ElementsAre(104, 105, 106, 107),
                          ElementsAre(108, 109, 110, 111)));
}

TEST_F(SampleSourceTest, WhatHasNothingToTrainOnIsLeftOutAndRefusedWhereItIsAll) {
  std::vector<bool> trained(9, false);
  trained[7] = true;
  write({4, 3, 2}, trained);  // only the first token of the last document
  const TokenCorpus all = corpus();
  const auto source = document_source(all, std::vector<DocumentRange>{{0, 0, 3}},
                                      {.sequence_tokens = 4, .shuffle_seed = {}});
  ASSERT_FALSE(source.ok());
  EXPECT_EQ(source.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(source.error().message(), HasSubstr("none of the 3 documents"));
  trained[5] = true;
  write({4, 3, 2}, trained);
  const TokenCorpus again = corpus();
  const auto left = document_source(again, std::vector<DocumentRange>{{0, 0, 3}},
                                    {.sequence_tokens = 4, .shuffle_seed = {}});
  ASSERT_OK(left);
  EXPECT_EQ((*left)->count(), 1U);
  EXPECT_THAT(read(**left, 0, 4).targets, ElementsAre(105, kNone, kNone, kNone));
}

TEST_F(SampleSourceTest, FilesThatDoNotFitTheTokensAreRefusedByName) {
  write({4, 3}, std::vector<bool>(7, true));
  ASSERT_EQ(refusal(), "accepted");
  const std::vector<std::byte> good = bytes_of(std::vector<std::uint64_t>{0, 4, 7});
  for (const std::vector<std::uint64_t>& wrong : std::vector<std::vector<std::uint64_t>>{
           {0, 4}, {0, 4, 8}, {1, 4, 7}, {0, 0, 7}, {0, 8, 7}}) {
    write_file(path() + ".documents", bytes_of(wrong));
    EXPECT_THAT(refusal(), HasSubstr(path() + ".documents"));
  }
  std::filesystem::remove(path() + ".documents");
  EXPECT_THAT(refusal(ErrorCode::kNotFound), HasSubstr(path() + ".documents"));
  write_file(path() + ".documents", good);
  write_file(path() + ".mask", {});
  EXPECT_THAT(refusal(), HasSubstr(path() + ".mask has 0 bytes instead of 1"));
  write_file(path() + ".mask", {std::byte{0b0111'1011}});
  EXPECT_THAT(refusal(), HasSubstr(path() + ".mask has 6 tokens to train on instead of 7"));
}

TEST_F(SampleSourceTest, WindowsOfATextAreAsBefore) {
  write({30}, std::vector<bool>(30, true));
  for (const char* const part : {".json", ".documents", ".mask"})
    std::filesystem::remove(path() + part);
  const TokenCorpus all = corpus();
  const auto source = window_source(all, all.whole(), {.sequence_tokens = 4, .shuffle_seed = 5});
  ASSERT_OK(source);
  EXPECT_FALSE((*source)->has_documents());
  const auto sampler = ShuffledSampler::create(all.whole(), {.sequence_tokens = 4, .seed = 5});
  ASSERT_OK(sampler);
  EXPECT_EQ((*source)->count(), sampler->samples_per_epoch());
  EXPECT_EQ((*source)->order_id(), sampler->order_id());
  EXPECT_EQ((*source)->targets(), 4 * (*source)->count());
  EXPECT_EQ((*source)->places(2).front().tokens, 5U);
  const Read row = read(**source, 2, 4);
  const auto first = static_cast<std::int64_t>(sampler->at(2).first_token) + 100;
  EXPECT_THAT(row.inputs, ElementsAre(first, first + 1, first + 2, first + 3));
  EXPECT_THAT(row.targets, ElementsAre(first + 1, first + 2, first + 3, first + 4));
  EXPECT_EQ(row.counted, 4);
}

TEST_F(SampleSourceTest, SaysWhatBecameOfDocumentsAndTellsMasksApart) {
  std::vector<bool> trained(15, true);
  trained[13] = trained[14] = false;
  write({3, 10, 2}, trained);
  const TokenCorpus all = corpus();
  const auto source = document_source(all, std::vector<DocumentRange>{{0, 0, 3}},
                                      {.sequence_tokens = 4, .shuffle_seed = {}});
  ASSERT_OK(source);
  EXPECT_EQ(
      (*source)->outcome(),
      "3 documents in 2 rows of 4 tokens, 75% full; 6 tokens are trained on; 1 longer documents "
      "are truncated (data.long_documents); 1 documents without tokens to train on are left out");
  EXPECT_TRUE((*source)->leaves_out());
  const auto before = all.fingerprint();
  trained[0] = false;
  trained[13] = true;
  write({3, 10, 2}, trained);
  EXPECT_NE(*corpus().fingerprint(), *before);
}

TEST_F(SampleSourceTest, NumbersOfDocumentsThatCannotBeAreRefused) {
  write({4, 3}, std::vector<bool>(7, true));
  for (const char* const wrong : {"8", "2305843009213693951", "18446744073709551615"}) {
    write_text(path() + ".json",
               std::string(R"({"format": "sluice-tokens", "version": 2, "dtype": "uint16", )") +
                   R"("tokens": 7, "vocab_size": 1000, "trained_tokens": 7, "documents": )" +
                   wrong + R"(, "tokenizer": {"kind": "file"}})");
    EXPECT_THAT(refusal(), HasSubstr("cannot have " + std::string(wrong) + " documents"));
  }
}

// Masks are read from any position of a row, across the pieces in which they are read.
TEST_F(SampleSourceTest, TheMaskIsReadFromAnyBit) {
  std::vector<bool> trained(100000);
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i] = (i * i) % 7 < 3;
  write({trained.size()}, trained);
  const TokenCorpus all = corpus();
  const TokenDocuments& documents = *all.files().front().documents();
  for (const std::uint64_t first : {0, 1, 7, 8, 4095, 60001}) {
    const std::size_t count = 39000;
    const auto mask = std::make_unique<bool[]>(count);
    ASSERT_OK(documents.copy_mask(first, std::span(mask.get(), count)));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(mask[i], trained[first + i]) << first + i;
  }
}

}  // namespace
}  // namespace sluice::data
