#include "engine/exchange/tokenizer_files.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "engine/exchange/byte_tokenizer.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/exchange/tokenizer_checks.h"
#include "tests/engine/exchange/folder_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = TokenizerFiles::Kind;

json tokenizer_json(const std::string& first) {
  return {{"model", {{"type", "BPE"}, {"vocab", {{first, 0}, {"b", 1}}}}},
          {"added_tokens", {{{"id", 2}, {"content", "<end>"}}, {{"id", 3}, {"content", "<pad>"}}}}};
}

// The same tokenizer with another added token.
json larger_tokenizer_json(const std::string& first) {
  json tokenizer = tokenizer_json(first);
  tokenizer["added_tokens"].push_back({{"id", 4}, {"content", "<more>"}});
  return tokenizer;
}

class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::string& path) { std::filesystem::current_path(path); }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  const std::filesystem::path before_ = std::filesystem::current_path();
};

class Tokenizers : public FolderUnderTest {
 protected:
  // Keeps the tokenizer in "run".
  TokenizerFiles keep(const TokenizerFiles& tokenizer, std::int64_t first_step = 1) const {
    std::filesystem::create_directories(path("run"));
    return take(
        keep_tokenizer(queue(), tokenizer,
                       {.directory = path("run"), .context_tokens = 16, .first_step = first_step}));
  }
  TokenizerFiles kept() const { return take(tokenizer_of_run(queue(), path("run"))); }
  void put_sidecar(const std::string& name, const json& tokenizer) const {
    put(name + ".json", json{{"format", "sluice-tokens"},
                             {"version", 1},
                             {"dtype", "uint16"},
                             {"tokens", 5},
                             {"vocab_size", 257},
                             {"tokenizer", tokenizer}});
  }
  TokenizerFiles in(const std::string& folder) const {
    return take(tokenizer_in(queue(), path(folder)));
  }
  TokenizerFiles of(const std::string& tokens) const {
    return take(tokenizer_of_tokens(queue(), path(tokens)));
  }
  static TokenizerFiles take(const Result<TokenizerFiles>& found) {
    EXPECT_TRUE(found.ok()) << found.error().message();
    return found.ok() ? *found : TokenizerFiles();
  }
};

TEST_F(Tokenizers, TakeTheEndOfATextFromTheFirstFileThatSaysIt) {
  put("theirs/tokenizer.json", tokenizer_json("a"));
  EXPECT_TRUE(in("theirs").special.empty());
  put("theirs/special_tokens_map.json", json{{"eos_token", "<pad>"}});
  EXPECT_THAT(in("theirs").special.ends, ElementsAre(3));
  put("theirs/tokenizer_config.json",
      json{{"eos_token", {{"content", "<end>"}}}, {"pad_token", "<pad>"}});
  EXPECT_EQ(in("theirs").special, (SpecialTokens{.ends = {2}, .padding = 3}));
  put("theirs/config.json", json{{"model_type", "gpt2"}, {"vocab_size", 9}, {"eos_token_id", 5}});
  EXPECT_THAT(in("theirs").special.ends, ElementsAre(5));
  put("theirs/generation_config.json", json{{"eos_token_id", {7, 6}}, {"bos_token_id", 1}});
  EXPECT_EQ(in("theirs").special, (SpecialTokens{.begin = 1, .ends = {7, 6}, .padding = 3}));
  put("theirs/generation_config.json", std::string("oops"));
  EXPECT_FALSE(tokenizer_in(queue(), path("theirs")).ok());
}

TEST_F(Tokenizers, AreKeptInTheRunsFolderAndTakenOutOfItAlone) {
  put("theirs/tokenizer.json", tokenizer_json("a"));
  put("theirs/generation_config.json", json{{"eos_token_id", 2}, {"temperature", 0.5}});
  const TokenizerFiles theirs = in("theirs");
  EXPECT_EQ(keep(theirs).fingerprint, theirs.fingerprint);
  EXPECT_EQ(kept().path, path("run/tokenizer/tokenizer.json"));
  EXPECT_EQ(get("run/tokenizer/generation_config.json").at("temperature"), 0.5);
  EXPECT_EQ(get("run/tokenizer/tokenizer_config.json").at("eos_token"), "<end>");

  TokenizerFiles more = kept();  // from its own place
  more.special.ends.push_back(1);
  keep(more);
  EXPECT_THAT(kept().special.ends, ElementsAre(2, 1));
  EXPECT_EQ(get("run/tokenizer/tokenizer.json"), tokenizer_json("a"));
  EXPECT_EQ(get("run/tokenizer/generation_config.json").at("temperature"), 0.5);

  put("run/tokenizer/mine.txt", std::string("a note"));
  put("run/tokenizer.new/vocab.json", std::string("{}"));  // left by an interrupted write
  ASSERT_TRUE(remove_kept_tokenizer(queue().backend().files(), path("run")).ok());
  EXPECT_TRUE(there("run/tokenizer/mine.txt"));
  EXPECT_FALSE(there("run/tokenizer/tokenizer.json"));
  EXPECT_FALSE(there("run/tokenizer.new"));
  EXPECT_TRUE(remove_kept_tokenizer(queue().backend().files(), path("nowhere")).ok());
}

TEST_F(Tokenizers, AreSetAsideForOthersAndNeverOverwritten) {
  put("theirs/tokenizer.json", tokenizer_json("a"));
  put("theirs/merges.txt", std::string("a b"));
  const std::string first = keep(in("theirs")).fingerprint;
  put("run/tokenizer/mine.txt", std::string("a note"));
  put("run/tokenizer.new/vocab.json", std::string("{}"));  // left by an interrupted write
  put_sidecar("data.bin", {{"kind", "bytes"}, {"end_of_text", 256}});
  EXPECT_EQ(keep(of("data.bin"), 5).kind, Kind::kBytes);
  EXPECT_EQ(get("run/tokenizer/generation_config.json"),
            json({{"bos_token_id", 256}, {"eos_token_id", 256}}));
  for (const char* foreign : {"vocab.json", "merges.txt", "mine.txt"})
    EXPECT_FALSE(there(std::string("run/tokenizer/") + foreign)) << foreign;
  EXPECT_EQ(in("run/tokenizer-before-step-5").fingerprint, first);
  EXPECT_TRUE(there("run/tokenizer-before-step-5/merges.txt"));
  EXPECT_TRUE(there("run/tokenizer-before-step-5/mine.txt"));
  keep(in("theirs"), 5);
  EXPECT_EQ(in("run/tokenizer-before-step-5-2").kind, Kind::kBytes);

  // The program ended after the previous one was moved away, before the new one was in place.
  std::filesystem::rename(path("run/tokenizer"), path("run/tokenizer.new"));
  EXPECT_EQ(kept().fingerprint, first);
  EXPECT_EQ(keep(in("theirs"), 6).path, path("run/tokenizer/tokenizer.json"));
  EXPECT_FALSE(there("run/tokenizer.new"));
  EXPECT_FALSE(there("run/tokenizer-before-step-6"));
}

TEST_F(Tokenizers, StayWhereTheOneToComeHasNoFile) {
  put("theirs/tokenizer.json", tokenizer_json("a"));
  put("theirs/generation_config.json", json{{"eos_token_id", 2}});
  const std::string theirs = keep(in("theirs")).fingerprint;
  put_sidecar("data.bin", {{"kind", "bpe"}, {"end_of_text", 0}, {"vocabulary_sha256", "f00"}});
  for (const char* data : {"data.bin", "none.bin"}) {
    EXPECT_EQ(keep(of(data), 5).fingerprint, theirs) << data;
    EXPECT_THAT(kept().special.ends, ElementsAre(2));
    EXPECT_FALSE(there("run/tokenizer-before-step-5"));
  }
}

TEST_F(Tokenizers, OfTheFolderItselfAreThoseOfOlderRunsAlone) {
  put("run/tokenizer.json", tokenizer_json("a"));
  EXPECT_EQ(kept().path, path("run/tokenizer.json"));
  put("run/sluice-run.json", json{{"format", "sluice-run"}, {"files", json::array({"lock"})}});
  EXPECT_EQ(kept().kind, Kind::kUnknown);
}

TEST_F(Tokenizers, AreKnownToARunByTheirFingerprintUntilTheirFileComes) {
  put("data/tokenizer.json", tokenizer_json("a"));
  const std::string hash = in("data").fingerprint;
  std::filesystem::rename(path("data/tokenizer.json"), path("later.json"));
  put_sidecar("data/train.bin", {{"kind", "bpe"}, {"end_of_text", 2}, {"vocabulary_sha256", hash}});
  keep(of("data/train.bin"));
  const TokenizerFiles alone = kept();
  EXPECT_EQ(alone.kind, Kind::kUnknown);
  EXPECT_EQ(alone.fingerprint, hash);
  EXPECT_EQ(alone.tokens, 257U);
  EXPECT_THAT(alone.note, HasSubstr(path("data/train.bin.json")));
  put_sidecar("bytes.bin", {{"kind", "bytes"}});
  EXPECT_FALSE(check_same_tokenizer(queue(), {of("bytes.bin"), "data", alone, "run"}).ok());
  const auto found = find_tokenizer(queue(), path("run"), {path("bytes.bin")});
  EXPECT_EQ(take(found).kind, Kind::kUnknown);  // and not bytes

  std::filesystem::rename(path("later.json"), path("data/tokenizer.json"));
  EXPECT_EQ(take(find_tokenizer(queue(), path("run"), {path("data/train.bin")})).kind, Kind::kFile);
  EXPECT_EQ(keep(of("data/train.bin")).path, path("run/tokenizer/tokenizer.json"));
  EXPECT_THAT(kept().special.ends, ElementsAre(2));

  put("damaged/tokenizer/fingerprint.json", std::string("{"));
  const auto damaged = tokenizer_of_run(queue(), path("damaged"));
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code(), ErrorCode::kCorrupt);
}

TEST_F(Tokenizers, AreTheSameWithMoreAddedTokensAndTheLargerIsKept) {
  put("one/tokenizer.json", tokenizer_json("a"));
  put("larger/tokenizer.json", larger_tokenizer_json("a"));
  put("other/tokenizer.json", larger_tokenizer_json("B"));
  const TokenizerFiles one = in("one");
  const TokenizerFiles larger = in("larger");
  const TokenizerFiles other = in("other");
  EXPECT_TRUE(check_same_tokenizer(queue(), {one, "x", larger, "y"}).ok());
  EXPECT_EQ(fuller_of(one, larger).path, larger.path);
  EXPECT_EQ(fuller_of(larger, one).path, larger.path);
  const Status refused = check_same_tokenizer(queue(), {one, "x", other, "y"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), ContainsRegex("token 0 is \"a\".*\"B\""));
  TokenizerFiles without_file = larger;
  without_file.kind = Kind::kUnknown;
  EXPECT_FALSE(check_same_tokenizer(queue(), {one, "x", without_file, "y"}).ok());
  EXPECT_EQ(fuller_of(without_file, one).path, one.path);
}

TEST_F(Tokenizers, OfBytesAreKnownByTheirVocabulary) {
  put("theirs/tokenizer.json", byte_tokenizer_json());
  const TokenizerFiles theirs = in("theirs");
  EXPECT_EQ(theirs.kind, Kind::kBytes);
  EXPECT_EQ(theirs.tokens, 257U);
  put_sidecar("data.bin", {{"kind", "bytes"}});
  EXPECT_EQ(of("data.bin").fingerprint, theirs.fingerprint);
}

TEST_F(Tokenizers, OfTokenFilesAreKnownByFingerprintOrByTheFileBeside) {
  const json about = {{"kind", "bpe"}, {"end_of_text", 2}, {"vocabulary_sha256", "f00"}};
  put_sidecar("data/train.bin", about);
  const TokenizerFiles alone = of("data/train.bin");
  EXPECT_EQ(alone.kind, Kind::kUnknown);
  EXPECT_EQ(alone.fingerprint, "f00");
  EXPECT_EQ(alone.special, (SpecialTokens{.begin = 2, .ends = {2}}));
  EXPECT_THAT(alone.note, HasSubstr("data/tokenizer.json"));

  put_sidecar("data/train.bin", {{"kind", "bpe"}});  // an older sidecar
  put("data/tokenizer.json", tokenizer_json("a"));
  EXPECT_EQ(of("data/train.bin").kind, Kind::kFile);
  EXPECT_EQ(of("data/train.bin").fingerprint, in("data").fingerprint);
  put_sidecar("data/train.bin", {{"kind", "bpe"}, {"sha256", std::string(64, '0')}});
  EXPECT_THAT(of("data/train.bin").note, HasSubstr("it has changed"));
  EXPECT_EQ(of("none.bin").kind, Kind::kUnknown);
  // A token that ends a conversation does not begin one.
  put("chat.bin.json", json{{"format", "sluice-tokens"},
                            {"version", 2},
                            {"dtype", "uint16"},
                            {"documents", 3},
                            {"trained_tokens", 2},
                            {"tokens", 5},
                            {"vocab_size", 257},
                            {"tokenizer", about}});
  EXPECT_EQ(of("chat.bin").special, (SpecialTokens{.ends = {2}}));
}

TEST_F(Tokenizers, OfOneCorpusAreOne) {
  put("a/tokenizer.json", tokenizer_json("a"));
  put("b/tokenizer.json", tokenizer_json("B"));
  for (const char* name : {"a/1.bin", "a/2.bin", "b/1.bin"}) put_sidecar(name, {{"kind", "bpe"}});
  const auto common = [&](const std::vector<std::string>& names) {
    std::vector<std::string> files;
    for (const std::string& name : names) files.push_back(path(name));
    return common_tokenizer(queue(), files);
  };
  EXPECT_EQ(take(common({"a/1.bin", "none.bin", "a/2.bin"})).fingerprint, in("a").fingerprint);
  EXPECT_EQ(take(common({"none.bin", "a/2.bin"})).fingerprint, in("a").fingerprint);
  const auto mixed = common({"none.bin", "a/1.bin", "b/1.bin"});
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(mixed.error().message(), AllOf(HasSubstr("a/1.bin"), HasSubstr("b/1.bin")));
}

TEST_F(Tokenizers, OfWeightsLieBesideThemOrWithTheirRun) {
  put("hub/tokenizer.json", tokenizer_json("a"));
  const std::string wanted = in("hub").fingerprint;
  keep(in("hub"));
  const std::string aside = "run/checkpoints/set-aside-at-step-000000001";
  put("run/checkpoints/step-000000001/checkpoint.json", std::string("{}"));
  put(aside + "/checkpoints/step-000000002/checkpoint.json", std::string("{}"));
  const auto of_weights = [&](const std::string& weights) {
    return take(tokenizer_of_weights(queue(), weights)).fingerprint;
  };
  for (const char* weights : {"hub", "hub/", "hub/model.safetensors", "run/model.safetensors",
                              "run/checkpoints/step-000000001"})
    EXPECT_EQ(of_weights(path(weights)), wanted) << weights;
  EXPECT_EQ(of_weights(path(aside + "/checkpoints/step-000000002")), wanted);
  EXPECT_EQ(take(tokenizer_of_weights(queue(), path("nowhere/x"))).kind, Kind::kUnknown);
  for (const auto& [folder, weights] : std::map<std::string, std::string>{
           {"run", "checkpoints/step-000000001"},
           {"run/checkpoints", "step-000000001"},
           {"run/checkpoints/step-000000001", "."},
           {aside, "checkpoints/step-000000002"},
           {"run/checkpoints/", aside.substr(aside.rfind('/') + 1) + "/checkpoints/step-000000002"},
           {"hub", "model.safetensors"}}) {
    const WorkingDirectory here(path(folder));
    EXPECT_EQ(of_weights(weights), wanted) << folder << " " << weights;
  }
}

TEST_F(Tokenizers, SayWhereAVocabularyIsMuchLarger) {
  TokenizerFiles bytes;
  EXPECT_FALSE(vocabulary_hint(bytes, 50257, 768));  // unknown
  bytes.tokens = 257;
  EXPECT_FALSE(vocabulary_hint(bytes, 512, 768));
  EXPECT_THAT(vocabulary_hint(bytes, 50257, 768).value_or(""),
              AllOf(HasSubstr("model.vocab=257"), HasSubstr("38400000 parameters")));
}

}  // namespace
}  // namespace sluice::engine
