#include "engine/data/token_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::data {
namespace {

using testing::HasSubstr;

class TokenCorpusTest : public testing::Test {
 protected:
  // Files "0", "1", ... with these numbers of tokens; token i of file f is 1000 f + i.
  TokenCorpus corpus_of(const std::vector<std::size_t>& counts) {
    std::vector<std::string> paths;
    for (std::size_t file = 0; file < counts.size(); ++file) {
      std::vector<std::uint16_t> tokens(counts[file]);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = static_cast<std::uint16_t>(1000 * file + i);
      }
      paths.push_back(folder_.file(std::to_string(file) + ".bin"));
      write_file(paths.back(), bytes_of(tokens));
    }
    auto corpus = TokenCorpus::open(paths, {});
    EXPECT_OK(corpus);
    return *std::move(corpus);
  }

  aio::TemporaryFolder folder_;
};

std::string text_of(const std::vector<TokenRange>& ranges) {
  std::string text;
  for (const TokenRange& range : ranges) {
    text += std::to_string(range.file) + ":" + std::to_string(range.begin) + "-" +
            std::to_string(range.end) + " ";
  }
  return text;
}

TEST_F(TokenCorpusTest, ReadsTheSequencesASamplerNames) {
  const TokenCorpus corpus = corpus_of({500, 300});
  EXPECT_EQ(corpus.token_count(), 800U);
  const auto sampler = ShuffledSampler::create(corpus.whole(), {.sequence_tokens = 32, .seed = 1});
  ASSERT_OK(sampler);
  std::vector<std::int64_t> tokens(33);
  for (std::uint64_t k = 0; k < 100; ++k) {
    const Sample sample = sampler->at(k);
    ASSERT_OK(corpus.read(sample, tokens));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i], static_cast<std::int64_t>(1000 * sample.file + sample.first_token + i));
    }
  }
}

TEST_F(TokenCorpusTest, GivesTheLastPartOfEachFileToValidation) {
  const TokenCorpus corpus = corpus_of({1000, 200, 30});
  const auto split = corpus.split({.validation_fraction = 0.1, .sequence_tokens = 16});
  ASSERT_OK(split);
  // 200 * 0.1 = 20. The third file would give one window rather than 3 tokens, but could not keep
  // one.
  EXPECT_EQ(text_of(split->train), "0:0-900 1:0-180 2:0-30 ");
  EXPECT_EQ(text_of(split->validation), "0:900-1000 1:180-200 ");
}

TEST_F(TokenCorpusTest, GivesAtLeastOneWindowToValidation) {
  const TokenCorpus corpus = corpus_of({100});
  const auto split = corpus.split({.validation_fraction = 0.001, .sequence_tokens = 16});
  ASSERT_OK(split);
  EXPECT_EQ(text_of(split->train), "0:0-83 ");
  EXPECT_EQ(text_of(split->validation), "0:83-100 ");
}

TEST_F(TokenCorpusTest, TrainsOnEverythingWhenNoValidationIsAskedFor) {
  const auto split = corpus_of({100, 50}).split({.sequence_tokens = 16});
  ASSERT_OK(split);
  EXPECT_EQ(text_of(split->train), "0:0-100 1:0-50 ");
  EXPECT_EQ(text_of(split->validation), "");
}

TEST_F(TokenCorpusTest, RefusesASplitThatLeavesOneSideWithoutAWindow) {
  const TokenCorpus corpus = corpus_of({33});
  ASSERT_FALSE(corpus.split({.validation_fraction = 0.5, .sequence_tokens = 16}).ok());
  EXPECT_THAT(corpus.split({.validation_fraction = 0.5, .sequence_tokens = 16}).error().message(),
              testing::AllOf(HasSubstr("33 tokens"), HasSubstr("17 tokens")));
  EXPECT_OK(corpus.split({.validation_fraction = 0.5, .sequence_tokens = 15}));
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan("")}) {
    EXPECT_FALSE(corpus.split({.validation_fraction = fraction, .sequence_tokens = 1}).ok());
  }
}

TEST_F(TokenCorpusTest, TellsTextsOfTheSameLengthApart) {
  const auto before = corpus_of({5000, 700}).fingerprint();
  ASSERT_OK(before);
  EXPECT_EQ(*corpus_of({5000, 700}).fingerprint(), *before);
  EXPECT_NE(*corpus_of({700, 5000}).fingerprint(), *before);
  EXPECT_NE(*corpus_of({5000, 701}).fingerprint(), *before);
  const TokenCorpus corpus = corpus_of({5000, 700});
  std::vector<std::uint16_t> other(5000, 3);
  write_file(folder_.file("0.bin"), bytes_of(other));
  EXPECT_NE(*corpus.fingerprint(), *before);
}

// fingerprint() reads samples, as checkpoints of earlier versions require; token_hash() reads
// everything.
TEST_F(TokenCorpusTest, HashesEveryToken) {
  constexpr std::size_t kTokens = 700'003;  // more than one read, and not a whole number of words
  std::vector<std::uint16_t> tokens(kTokens);
  for (std::size_t i = 0; i < kTokens; ++i) tokens[i] = static_cast<std::uint16_t>(i * 7);
  const std::vector<std::string> paths = {folder_.file("all.bin")};
  const auto hash_of = [&](const std::vector<std::uint16_t>& all) {
    write_file(paths[0], bytes_of(all));
    return *TokenCorpus::open(paths, {})->token_hash();
  };
  const std::uint64_t before = hash_of(tokens);
  EXPECT_EQ(hash_of(tokens), before);
  for (const std::size_t changed : {std::size_t{0}, std::size_t{1000}, kTokens / 2, kTokens - 1}) {
    std::vector<std::uint16_t> other = tokens;
    other[changed] ^= 1;
    EXPECT_NE(hash_of(other), before) << changed;
  }
  EXPECT_EQ(hash_of(tokens), before);
  const auto corpus = TokenCorpus::open(paths, {});
  ASSERT_OK(corpus);
  EXPECT_EQ(*corpus->token_hash(65536), before);
  const auto beyond = corpus->token_hash(tokens[1]);
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().message(), HasSubstr("token 1 is 7"));
}

TEST_F(TokenCorpusTest, NamesTheFileThatCannotBeOpened) {
  corpus_of({10});
  const std::vector<std::string> paths = {folder_.file("0.bin"), folder_.file("none.bin")};
  const auto corpus = TokenCorpus::open(paths, {});
  ASSERT_FALSE(corpus.ok());
  EXPECT_EQ(corpus.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(corpus.error().message(), HasSubstr("none.bin"));
  EXPECT_FALSE(TokenCorpus::open({}, {}).ok());
}

}  // namespace
}  // namespace sluice::data
