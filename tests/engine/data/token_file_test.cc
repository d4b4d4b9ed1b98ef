#include "engine/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "engine/data/token_sidecar.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::data {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class TokenFileTest : public testing::Test {
 protected:
  std::string path() const { return folder_.file("text.bin"); }

  Result<TokenFile> open(std::optional<TokenType> type = {}) {
    return TokenFile::open(path(), {.type = type});
  }
  void expect_refusal(ErrorCode code, const testing::Matcher<const std::string&>& sentence,
                      std::optional<TokenType> type = {}) {
    const auto file = open(type);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code(), code) << file.error().message();
    EXPECT_THAT(file.error().message(), AllOf(HasSubstr(path()), sentence));
  }
  template <typename Token>
  void expect_tokens(const TokenFile& file, const std::vector<Token>& tokens) {
    ASSERT_EQ(file.token_count(), tokens.size());
    std::vector<std::int64_t> read(tokens.size());
    ASSERT_OK(file.copy(0, read));
    for (std::size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(read[i], tokens[i]) << i;
  }

  aio::TemporaryFolder folder_;
  const std::vector<std::uint16_t> narrow_ = counting_tokens(20000);
  const std::vector<std::uint32_t> wide_ = {0, 1, 65536, 128255, 4294967295U};
};

TEST_F(TokenFileTest, ReadsRawUint16AndSaysThatItTookItSo) {
  write_file(path(), bytes_of(narrow_));
  const auto file = open();
  ASSERT_OK(file);
  expect_tokens(*file, narrow_);
  EXPECT_THAT(file->note(), AllOf(HasSubstr("read as uint16"), Not(HasSubstr("uint32"))));
  EXPECT_EQ(file->vocab_size(), 0U);
}

TEST_F(TokenFileTest, ReadsRawUint32WhenToldAndSuspectsItWhenNot) {
  std::vector<std::uint32_t> small(narrow_.begin(), narrow_.end());
  write_file(path(), bytes_of(small));
  const auto told = open(TokenType::kUint32);
  ASSERT_OK(told);
  expect_tokens(*told, small);
  EXPECT_EQ(told->note(), "");
  const auto untold = open();
  ASSERT_OK(untold);
  EXPECT_EQ(untold->token_count(), 2 * small.size());
  EXPECT_THAT(untold->note(), HasSubstr("file of uint32"));
}

TEST_F(TokenFileTest, RefusesATextAndPartsWithoutTheirSidecar) {
  write_text(path(), "{\"messages\": [{\"role\": \"user\"}]} \n");
  EXPECT_THAT(open().error().message(), HasSubstr("starts with text"));
  EXPECT_OK(open(TokenType::kUint16));
  write_file(path(), bytes_of(narrow_));
  EXPECT_TRUE(open()->assumes_type());
  EXPECT_FALSE(open(TokenType::kUint16)->assumes_type());
  for (const char* const part : {".mask", ".documents"}) {
    write_text(path() + part, "x");
    for (const auto type : {std::optional<TokenType>(), std::optional(TokenType::kUint16)})
      EXPECT_THAT(open(type).error().message(), AllOf(HasSubstr(part), HasSubstr(".json, which")));
    std::filesystem::remove(path() + part);
  }
}

TEST_F(TokenFileTest, ReadsBothOfLlmcsFormats) {
  write_file(path(), llmc_file(20240520, 1, narrow_));
  auto file = open();
  ASSERT_OK(file);
  expect_tokens(*file, narrow_);
  EXPECT_EQ(file->note(), "");
  write_file(path(), llmc_file(20240801, 7, wide_));
  file = open();
  ASSERT_OK(file);
  EXPECT_EQ(file->type(), TokenType::kUint32);
  expect_tokens(*file, wide_);
}

TEST_F(TokenFileTest, BelievesTheSidecar) {
  write_file(path(), bytes_of(wide_));
  write_text(path() + ".json", sidecar_text("uint32", wide_.size(), 128256));
  const auto file = open();
  ASSERT_OK(file);
  expect_tokens(*file, wide_);
  EXPECT_EQ(file->vocab_size(), 128256U);
  EXPECT_EQ(file->note(), "");
}

TEST_F(TokenFileTest, CopiesAnyRange) {
  write_file(path(), llmc_file(20240520, 1, narrow_));
  const auto file = open();
  ASSERT_OK(file);
  for (const std::size_t first : {0UL, 1UL, 8191UL, 8192UL, 19999UL, 20000UL}) {
    for (const std::size_t count : {0UL, 1UL, 1025UL, 8192UL, 8193UL, 17000UL}) {
      if (first + count > narrow_.size()) continue;
      std::vector<std::int64_t> read(count);
      ASSERT_OK(file->copy(first, read));
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(read[i], narrow_[first + i]);
    }
  }
}

TEST_F(TokenFileTest, IsReadByManyThreadsAtOnce) {
  write_file(path(), bytes_of(narrow_));
  const auto file = open();
  ASSERT_OK(file);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::int64_t> read(257);
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t first = (i * 7919 + t * 104729) % (narrow_.size() - read.size());
        if (!file->copy(first, read).ok() || read[256] != narrow_[first + 256]) ++wrong[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST_F(TokenFileTest, RefusesWhatIsNotWholeTokens) {
  write_file(path(), {});
  expect_refusal(ErrorCode::kInvalidArgument, HasSubstr("is empty"));
  write_file(path(), std::vector<std::byte>(1001));
  expect_refusal(ErrorCode::kCorrupt, AllOf(HasSubstr("1001 bytes"), HasSubstr("2 of a uint16")));
  write_file(path(), std::vector<std::byte>(1002));
  expect_refusal(ErrorCode::kCorrupt, HasSubstr("4 of a uint32"), TokenType::kUint32);
}

TEST_F(TokenFileTest, RefusesAHeaderThatDoesNotFitItsFile) {
  auto bytes = llmc_file(20240520, 1, narrow_);
  bytes.pop_back();
  write_file(path(), bytes);
  expect_refusal(ErrorCode::kCorrupt,
                 AllOf(HasSubstr("announces 20000 tokens"), HasSubstr("41024 bytes"),
                       HasSubstr("has 41023"), HasSubstr("truncated")));
  bytes.resize(41026);
  write_file(path(), bytes);
  expect_refusal(ErrorCode::kCorrupt, AllOf(HasSubstr("has 41026"), HasSubstr("damaged")));
  bytes.resize(100);
  write_file(path(), bytes);
  expect_refusal(ErrorCode::kCorrupt, HasSubstr("header of 1024"));
  write_file(path(), llmc_file(20240520, 1, std::vector<std::uint16_t>{}));
  expect_refusal(ErrorCode::kCorrupt, HasSubstr("announces 0 tokens"));
}

TEST_F(TokenFileTest, RefusesFormatsItDoesNotKnow) {
  write_file(path(), llmc_file(20240520, 2, narrow_));
  expect_refusal(ErrorCode::kUnsupported, AllOf(HasSubstr("of version 2"), HasSubstr("version 1")));
  write_file(path(), llmc_file(20240801, 1, wide_));
  expect_refusal(ErrorCode::kUnsupported, HasSubstr("version 7"));
  write_file(path(), llmc_file(20240522, 1, narrow_));
  expect_refusal(ErrorCode::kInvalidArgument, HasSubstr("multiple-choice"));
}

TEST_F(TokenFileTest, RefusesSourcesThatContradictEachOther) {
  write_file(path(), llmc_file(20240520, 1, narrow_));
  expect_refusal(ErrorCode::kInvalidArgument, ContainsRegex("header says uint16.*uint32"),
                 TokenType::kUint32);
  write_file(path(), bytes_of(wide_));
  write_text(path() + ".json", sidecar_text("uint32", wide_.size(), 128256));
  expect_refusal(ErrorCode::kInvalidArgument, ContainsRegex("says uint32.*uint16"),
                 TokenType::kUint16);
  write_text(path() + ".json", sidecar_text("uint32", wide_.size() + 1, 128256));
  expect_refusal(ErrorCode::kCorrupt, AllOf(HasSubstr("holds 5 tokens"), HasSubstr("says 6")));
}

TEST_F(TokenFileTest, RefusesASidecarItCannotUse) {
  write_file(path(), bytes_of(wide_));
  const std::string good = sidecar_text("uint32", wide_.size(), 128256);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "is not a JSON object"},
           {"[]", "is not a JSON object"},
           {good.substr(0, good.size() - 1), "is not a JSON object"},
           {with("sluice-tokens", "tokens"), "\"format\""},
           {with("\"version\": 1", "\"version\": 3"), "version 3"},
           {with("\"version\": 1", "\"version\": 2"), "\"documents\" is missing"},
           {with("uint32", "int32"), "\"dtype\" is neither"},
           {with("\"tokens\": 5", "\"tokens\": -5"), "\"tokens\" is missing"},
           {with("\"tokens\": 5", "\"tokens\": 5.0"), "\"tokens\" is missing"},
           {with("128256", "0"), "\"vocab_size\" is missing"},
           {with("{\"kind\": \"bytes\"}", "\"bytes\""), "\"tokenizer\" is missing"},
           {with("\"kind\"", "\"sort\""), "\"kind\" is missing"}}) {
    write_text(path() + ".json", text);
    SCOPED_TRACE(text);
    const auto file = open();
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.error().message(), AllOf(HasSubstr(path() + ".json"), HasSubstr(what)));
  }
  write_text(path() + ".json", with("\"version\": 1", "\"version\": 3"));
  expect_refusal(ErrorCode::kNewerVersion, HasSubstr("version 3"));
  write_text(path() + ".json", std::string(kMaxSidecarBytes + 1, ' '));
  EXPECT_THAT(open().error().message(), HasSubstr("too large"));
}

TEST_F(TokenFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(open().error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(TokenFile::open(folder_.path(), {}).error().message(), HasSubstr("is a folder"));
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(open().error().message(), HasSubstr("a regular file"));
}

TEST_F(TokenFileTest, ReportsAFileThatShrinksWhileItIsInUse) {
  write_file(path(), bytes_of(narrow_));
  const auto file = open();
  ASSERT_OK(file);
  ASSERT_EQ(::truncate(path().c_str(), 1000), 0);
  std::vector<std::int64_t> read(100);
  EXPECT_OK(file->copy(400, read));
  const Status status = file->copy(401, read);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kEndOfFile);
  EXPECT_THAT(status.error().message(), AllOf(HasSubstr(path()), HasSubstr("40000 bytes")));
}

TEST_F(TokenFileTest, FindsTheFirstTokenBeyondAVocabulary) {
  std::vector<std::uint16_t> tokens(1500000, 7);  // more than one piece of the scan
  tokens[1200000] = 300;
  tokens[1400000] = 400;
  write_file(path(), bytes_of(tokens));
  const auto file = open();
  ASSERT_OK(file);
  EXPECT_OK(file->check_vocab(401));
  EXPECT_OK(file->check_vocab(1 << 20));
  const Status status = file->check_vocab(300);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr("token 1200000 is 300"), HasSubstr("vocabulary ends at 299")));
}

TEST(TokenSidecar, NamesItsTokenizer) {
  EXPECT_EQ(parse_token_sidecar(sidecar_text("uint16", 5, 300))->vocabulary_sha256, "");
  const std::string named =
      R"({"format": "sluice-tokens", "version": 1, "dtype": "uint16", "tokens": 5,
          "vocab_size": 300, "tokenizer": {"kind": "bpe", "sha256": "ab", "vocabulary_sha256": )";
  const auto sidecar = parse_token_sidecar(named + "\"cd\"}}");
  ASSERT_TRUE(sidecar.ok());
  EXPECT_EQ(sidecar->tokenizer_sha256, "ab");
  EXPECT_EQ(sidecar->vocabulary_sha256, "cd");
  EXPECT_EQ(parse_token_sidecar(named + "null}}")->vocabulary_sha256, "");
  EXPECT_FALSE(parse_token_sidecar(named + "7}}").ok());
}

}  // namespace
}  // namespace sluice::data
