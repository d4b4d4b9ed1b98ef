#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "engine/data/sample_source.h"
#include "engine/run/evaluation_run.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kNone = data::kIgnoredSample;

// Files with documents of these lengths; every token is trained on.
class DocumentLossesTest : public testing::Test {
 protected:
  data::TokenCorpus corpus(const std::vector<std::vector<std::uint64_t>>& files) const {
    std::vector<std::string> paths;
    for (const std::vector<std::uint64_t>& lengths : files) {
      paths.push_back(folder_.file(std::to_string(paths.size()) + ".bin"));
      std::vector<std::uint64_t> starts = {0};
      for (const std::uint64_t length : lengths) starts.push_back(starts.back() + length);
      const std::string tokens = std::to_string(starts.back());
      data::write_file(paths.back(), data::bytes_of(std::vector<std::uint16_t>(starts.back(), 1)));
      data::write_file(paths.back() + ".documents", data::bytes_of(starts));
      std::vector<std::uint8_t> mask((starts.back() + 7) / 8, 0xff);
      if (starts.back() % 8 != 0)
        mask.back() = static_cast<std::uint8_t>((1U << (starts.back() % 8)) - 1);
      data::write_file(paths.back() + ".mask", data::bytes_of(mask));
      data::write_text(
          paths.back() + ".json",
          R"({"format": "sluice-tokens", "version": 2, "dtype": "uint16", "tokens": )" + tokens +
              R"(, "vocab_size": 9, "documents": )" + std::to_string(lengths.size()) +
              R"(, "trained_tokens": )" + tokens + R"(, "tokenizer": {"kind": "file"}})");
    }
    auto opened = data::TokenCorpus::open(paths, {});
    EXPECT_OK(opened);
    return *std::move(opened);
  }

  aio::TemporaryFolder folder_;
};

TEST_F(DocumentLossesTest, PiecesOfADocumentAddUpHoweverTheyCome) {
  const data::TokenCorpus files = corpus({{4, 10, 3}, {6}});
  const std::vector<float> losses = {1, 2, 4, 8};
  const std::vector<std::int64_t> all = {1, 1, 1, 1};
  const std::vector<std::int64_t> some = {kNone, 1, kNone, 1};
  const std::vector<std::int64_t> none = {kNone, kNone, kNone, kNone};
  DocumentLosses sums;
  sums.add({.file = 1, .first_token = 0, .losses = losses, .targets = some});
  sums.add({.file = 0, .first_token = 8, .losses = losses, .targets = some});  // in document 1
  sums.add({.file = 0, .first_token = 14, .losses = losses, .targets = none});
  sums.add({.file = 0, .first_token = 4, .losses = losses, .targets = all});  // in document 1
  const std::vector<DocumentLoss> documents = sums.of_documents(files);
  ASSERT_EQ(documents.size(), 2U);
  EXPECT_EQ(documents[0].file, 0U);
  EXPECT_EQ(documents[0].document, 1U);
  EXPECT_EQ(documents[0].targets, 6U);
  EXPECT_EQ(documents[0].sum, 25);
  EXPECT_EQ(documents[1].file, 1U);
  EXPECT_EQ(documents[1].document, 0U);
  EXPECT_EQ(documents[1].mean(), 5);
}

// Doubles whose sum depends on their order.
TEST_F(DocumentLossesTest, TheOrderOfRowsChangesNoBit) {
  const data::TokenCorpus files = corpus({{400}});
  std::vector<std::vector<float>> losses(40);
  for (std::size_t i = 0; i < losses.size(); ++i)
    for (std::size_t j = 0; j < 9; ++j)
      losses[i].push_back(1.0F / static_cast<float>(3 + i * 7 + j));
  const std::vector<std::int64_t> targets(9, 1);
  const auto sum = [&](std::size_t step) {
    DocumentLosses sums;
    for (std::size_t n = 0; n < losses.size(); ++n) {
      const std::size_t i = n * step % losses.size();
      sums.add({.file = 0, .first_token = i * 10, .losses = losses[i], .targets = targets});
    }
    return sums.of_documents(files).front().sum;
  };
  double expected = 0;
  for (const auto& piece : losses) {
    double of_piece = 0;
    for (const float loss : piece) of_piece += double{loss};
    expected += of_piece;
  }
  for (const std::size_t step : {1, 3, 7, 39}) EXPECT_EQ(sum(step), expected) << step;
}

TEST(DocumentSummary, MeansAreOverTargetsAndOverDocuments) {
  const std::vector<DocumentLoss> documents = {{.document = 4, .targets = 1, .sum = 6},
                                               {.document = 5, .targets = 8, .sum = 8},
                                               {.document = 9, .targets = 1, .sum = 6},
                                               {.document = 12, .targets = 2, .sum = 2}};
  const DocumentSummary sum = summary_of(documents);
  EXPECT_EQ(sum.targets, 12U);
  EXPECT_DOUBLE_EQ(sum.mean, 22.0 / 12);
  EXPECT_DOUBLE_EQ(sum.mean_of_documents, 14.0 / 4);
  EXPECT_EQ(sum.best, 1U);
  EXPECT_EQ(sum.worst, 0U);
}

TEST(DocumentSummary, WhatIsNotFiniteIsTheWorst) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<DocumentLoss> documents = {{.document = 0, .targets = 1, .sum = nan},
                                               {.document = 1, .targets = 1, .sum = 3},
                                               {.document = 2, .targets = 1, .sum = 2}};
  const DocumentSummary sum = summary_of(documents);
  EXPECT_TRUE(std::isnan(sum.mean));
  EXPECT_EQ(sum.best, 2U);
  EXPECT_EQ(sum.worst, 0U);
}

}  // namespace
}  // namespace sluice::engine
