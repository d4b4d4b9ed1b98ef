#include "engine/exchange/tokenizer_files.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/check.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/data/sha256.h"
#include "engine/data/token_sidecar.h"
#include "engine/exchange/byte_tokenizer.h"
#include "engine/exchange/described_model.h"
#include "engine/families/families.h"

namespace sluice::engine {
namespace {

using PlainJson = nlohmann::json;
using Entry = std::pair<std::int64_t, std::string>;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 32;

Error wrong(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "it is not a tokenizer.json: " + what);
}

Status add(const PlainJson& id, const std::string& text, std::set<Entry>& entries) {
  if (!id.is_number_integer() || id < 0 || id >= kMostTokens)
    return wrong("a token has the id " + id.dump());
  entries.emplace(id.get<std::int64_t>(), text);
  return {};
}

// BPE, WordPiece and WordLevel: {"the": 5, ...}. Unigram: [["the", -3.2], ...].
Status add_vocabulary(const PlainJson& vocabulary, std::set<Entry>& entries) {
  if (vocabulary.is_object()) {
    for (const auto& [text, id] : vocabulary.items())
      SLUICE_RETURN_IF_ERROR(add(id, text, entries));
    return {};
  }
  if (!vocabulary.is_array()) return wrong("\"model\" has no \"vocab\"");
  std::int64_t id = 0;
  for (const PlainJson& entry : vocabulary) {
    if (!entry.is_array() || entry.empty() || !entry[0].is_string())
      return wrong("an entry of its \"vocab\" is not a token");
    SLUICE_RETURN_IF_ERROR(add(PlainJson(id++), entry[0].get<std::string>(), entries));
  }
  return {};
}

std::string fingerprint(const std::vector<Entry>& entries) {
  data::Sha256 hash;
  for (const auto& [id, text] : entries) {
    hash.update(std::to_string(id) + " " + std::to_string(text.size()) + " ");
    hash.update(text);
    hash.update("\n");
  }
  return hash.finish();
}

// The first entry of `a` that `b` lacks, if it makes a difference.
std::optional<TokenDifference> first_unmatched(const TokenizerVocabulary& a,
                                               const TokenizerVocabulary& b) {
  for (const Entry& entry : a.tokens) {
    const auto& [token, text] = entry;
    if (std::binary_search(b.tokens.begin(), b.tokens.end(), entry)) continue;
    const auto there = std::lower_bound(b.tokens.begin(), b.tokens.end(), Entry(token, ""));
    const bool has_number = there != b.tokens.end() && there->first == token;
    if (!has_number && a.added_token(text) == token) continue;
    return TokenDifference{.token = token, .a = text, .b = has_number ? there->second : ""};
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> TokenizerVocabulary::added_token(std::string_view text) const {
  const auto found = added.find(text);
  return found == added.end() ? std::nullopt : std::optional(found->second);
}

std::string TokenizerVocabulary::added_text(std::int64_t token) const {
  for (const auto& [text, id] : added)
    if (id == token) return text;
  return {};
}

Result<TokenizerVocabulary> parse_tokenizer_vocabulary(std::string_view tokenizer_json) {
  SLUICE_RETURN_IF_ERROR(check_json_bounds(tokenizer_json));
  const PlainJson json = json_or_discarded<PlainJson>(tokenizer_json);
  if (!json.is_object()) return wrong("it is not a JSON object");
  const PlainJson model = json.value("model", PlainJson());
  if (!model.is_object()) return wrong("it has no \"model\"");
  std::set<Entry> entries;
  SLUICE_RETURN_IF_ERROR(add_vocabulary(model.value("vocab", PlainJson()), entries));
  TokenizerVocabulary vocabulary;
  const PlainJson added = json.value("added_tokens", PlainJson());
  for (const PlainJson& token : added.is_array() ? added : PlainJson::array()) {
    if (!token.is_object() || !token.value("content", PlainJson()).is_string())
      return wrong("an entry of its \"added_tokens\" is not a token");
    const auto text = token.at("content").get<std::string>();
    const PlainJson id = token.value("id", PlainJson());
    SLUICE_RETURN_IF_ERROR(add(id, text, entries));
    vocabulary.added[text] = id.get<std::int64_t>();
  }
  if (entries.empty()) return wrong("it has no tokens");
  vocabulary.size = static_cast<std::uint64_t>(entries.rbegin()->first) + 1;
  vocabulary.tokens.assign(entries.begin(), entries.end());
  vocabulary.sha256 = fingerprint(vocabulary.tokens);
  return vocabulary;
}

std::optional<TokenDifference> first_difference(const TokenizerVocabulary& a,
                                                const TokenizerVocabulary& b) {
  auto of_a = first_unmatched(a, b);
  const auto of_b = first_unmatched(b, a);
  if (!of_a && !of_b) return std::nullopt;
  if (of_a && (!of_b || of_a->token <= of_b->token)) return of_a;
  return TokenDifference{.token = of_b->token, .a = of_b->b, .b = of_b->a};
}

namespace {

using Json = nlohmann::ordered_json;
using Kind = TokenizerFiles::Kind;

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kSpecialName = "special_tokens_map.json";
// Tokenizer files in a Hugging Face folder of the GPT-2 family, besides tokenizer.json.
constexpr const char* kOtherNames[] = {kConfigName,  kSpecialName,        "vocab.json",
                                       "merges.txt", "added_tokens.json", "chat_template.jinja"};

std::string in_folder(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

// Empty if there is no such file.
Result<std::string> read_if_there(aio::IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  if (!there) return std::string();
  return aio::read_small_file(queue, path, kMaxTokenizerBytes);
}

Result<Json> read_object(aio::IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, read_if_there(queue, path));
  if (text.empty()) return Json::object();
  auto json = read_json_object<Json>(text);
  if (!json.ok()) return std::move(json).error().with_context(path);
  return json;
}

Result<TokenizerVocabulary> read_vocabulary(aio::IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxTokenizerBytes));
  auto vocabulary = parse_tokenizer_vocabulary(text);
  if (!vocabulary.ok()) return std::move(vocabulary).error().with_context(path);
  return vocabulary;
}

const TokenizerVocabulary& byte_vocabulary() {
  static const TokenizerVocabulary vocabulary = *parse_tokenizer_vocabulary(byte_tokenizer_json());
  return vocabulary;
}

void set_bytes(TokenizerFiles& tokenizer) {
  tokenizer.kind = Kind::kBytes;
  tokenizer.tokens = byte_vocabulary().size;
  tokenizer.fingerprint = byte_vocabulary().sha256;
}

// A file that numbers tokens by byte value is the byte tokenizer, whatever wrote it, and needs no
// library.
void set_vocabulary(const TokenizerVocabulary& vocabulary, TokenizerFiles& tokenizer) {
  tokenizer.kind = Kind::kFile;
  tokenizer.tokens = vocabulary.size;
  tokenizer.fingerprint = vocabulary.sha256;
  if (vocabulary.sha256 == byte_vocabulary().sha256) set_bytes(tokenizer);
}

// The special tokens that tokenizer_config.json and special_tokens_map.json name, with their
// numbers in tokenizer.json.
Result<SpecialTokens> named_tokens(aio::IoQueue& queue, const std::string& folder,
                                   const TokenizerVocabulary& vocabulary) {
  SpecialTokens tokens;
  for (const char* file : {kConfigName, kSpecialName}) {
    SLUICE_ASSIGN_OR_RETURN(const Json json, read_object(queue, in_folder(folder, file)));
    const auto token = [&](const char* key) -> std::optional<std::int64_t> {
      Json name = json.value(key, Json());
      if (name.is_object()) name = name.value("content", Json());
      if (!name.is_string()) return std::nullopt;
      return vocabulary.added_token(name.get<std::string>());
    };
    SpecialTokens found{.begin = token("bos_token"), .padding = token("pad_token")};
    if (const auto end = token("eos_token")) found.ends = {*end};
    tokens = tokens.or_else(found);
  }
  return tokens;
}

// From generation_config.json, else from a model's config.json; a run's config.json has another
// form.
Result<SpecialTokens> numbered_tokens(aio::IoQueue& queue, const std::string& folder) {
  SpecialTokens tokens;
  const std::string generation = in_folder(folder, kGenerationConfigName);
  SLUICE_ASSIGN_OR_RETURN(const std::string text, read_if_there(queue, generation));
  if (!text.empty()) {
    auto parsed = parse_special_tokens(text);
    if (!parsed.ok()) return std::move(parsed).error().with_context(generation);
    tokens = *std::move(parsed);
  }
  const std::string config = in_folder(folder, "config.json");
  SLUICE_ASSIGN_OR_RETURN(const Json model, read_object(queue, config));
  if (!model.contains("model_type")) return tokens;
  const auto parsed = read_hugging_face_config(model.dump());
  return parsed.ok() ? tokens.or_else(parsed->special) : tokens;
}

// For a tokenizer.json without a tokenizer_config.json.
Result<std::string> tokenizer_config(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                                     std::int64_t context_tokens) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", context_tokens},
                 {"clean_up_tokenization_spaces", false}};
  SLUICE_ASSIGN_OR_RETURN(const auto vocabulary, vocabulary_of(queue, tokenizer));
  const auto set = [&](const char* key, const std::optional<std::int64_t>& token) {
    const std::string text = token ? vocabulary.added_text(*token) : std::string();
    if (!text.empty()) config[key] = text;
  };
  const SpecialTokens& special = tokenizer.special;
  set("bos_token", special.begin);
  if (!special.ends.empty()) set("eos_token", special.ends.front());
  set("pad_token", special.padding);
  return config.dump(2) + "\n";
}

Status copy_others(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                   const std::string& folder) {
  for (const char* const name : kOtherNames) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            read_if_there(queue, in_folder(tokenizer.folder(), name)));
    if (text.empty()) continue;
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue, in_folder(folder, name), text));
  }
  return {};
}

Result<std::string> tokenizer_text(aio::IoQueue& queue, const TokenizerFiles& tokenizer) {
  if (tokenizer.path.empty()) return byte_tokenizer_json();
  SLUICE_ASSIGN_OR_RETURN(std::string text, read_if_there(queue, tokenizer.path));
  if (text.empty())
    return Error(ErrorCode::kNotFound, "there is no " + tokenizer.path + ", the tokenizer's file");
  return text;
}

}  // namespace

std::string TokenizerFiles::folder() const { return parent_folder(path.empty() ? source : path); }

std::string TokenizerFiles::description() const {
  const std::string size = tokens == 0 ? "" : std::to_string(tokens) + " tokens";
  if (kind == Kind::kBytes) return "bytes (" + size + ")";
  if (kind == Kind::kFile) return path + " (" + size + ")";
  return tokens == 0 ? "unknown" : size + " (" + source + ")";
}

Result<TokenizerFiles> tokenizer_in(aio::IoQueue& queue, const std::string& folder) {
  TokenizerFiles found;
  SLUICE_ASSIGN_OR_RETURN(found.special, numbered_tokens(queue, folder));
  const std::string path = in_folder(folder, kTokenizerName);
  found.source = path;
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  if (!there) {
    found.note = "there is no " + path;
    return found;
  }
  found.path = path;
  SLUICE_ASSIGN_OR_RETURN(const auto vocabulary, read_vocabulary(queue, path));
  set_vocabulary(vocabulary, found);
  SLUICE_ASSIGN_OR_RETURN(const SpecialTokens named, named_tokens(queue, folder, vocabulary));
  found.special = found.special.or_else(named);
  return found;
}

Result<TokenizerFiles> tokenizer_of_tokens(aio::IoQueue& queue, const std::string& token_file) {
  TokenizerFiles found;
  found.source = token_file + ".json";
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(found.source));
  if (!there) {
    found.note = "there is no " + found.source + ", which says how the tokens were made";
    return found;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, found.source, data::kMaxSidecarBytes));
  auto sidecar = data::parse_token_sidecar(text);
  if (!sidecar.ok()) return std::move(sidecar).error().with_context(found.source);
  if (sidecar->end_of_text) {
    found.special.ends = {*sidecar->end_of_text};
    // It separates texts that follow each other, so it also precedes one.
    if (sidecar->documents == 0) found.special.begin = sidecar->end_of_text;
  }
  if (sidecar->tokenizer == "bytes") {
    set_bytes(found);
    return found;
  }
  found.tokens = sidecar->vocab_size;
  found.fingerprint = sidecar->vocabulary_sha256;
  const std::string path = in_folder(parent_folder(token_file), kTokenizerName);
  SLUICE_ASSIGN_OR_RETURN(const std::string json, read_if_there(queue, path));
  data::Sha256 hash;
  hash.update(json);
  if (json.empty()) {
    found.note = "there is no " + path;
  } else if (!sidecar->tokenizer_sha256.empty() && hash.finish() != sidecar->tokenizer_sha256) {
    found.note = path + " is not the tokenizer that " + found.source + " names: it has changed";
  } else {
    auto vocabulary = parse_tokenizer_vocabulary(json);
    if (!vocabulary.ok()) return std::move(vocabulary).error().with_context(path);
    found.path = path;
    set_vocabulary(*vocabulary, found);
  }
  return found;
}

Result<TokenizerFiles> tokenizer_named(aio::IoQueue& queue, const std::string& name) {
  TokenizerFiles found;
  if (name == "bytes") {
    set_bytes(found);
    found.special = {.begin = kByteEndOfText, .ends = {kByteEndOfText}};
    return found;
  }
  found.path = found.source = name;
  auto read = read_vocabulary(queue, name);
  if (!read.ok() && read.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kNotFound,
                 "there is no tokenizer " + name +
                     download_hint(name.ends_with(".json") ? parent_folder(name) : name));
  if (!read.ok()) return std::move(read).error();
  const TokenizerVocabulary vocabulary = *std::move(read);
  set_vocabulary(vocabulary, found);
  SLUICE_ASSIGN_OR_RETURN(const SpecialTokens numbered, numbered_tokens(queue, found.folder()));
  SLUICE_ASSIGN_OR_RETURN(const SpecialTokens named,
                          named_tokens(queue, found.folder(), vocabulary));
  found.special = numbered.or_else(named);
  return found;
}

Result<TokenizerVocabulary> vocabulary_of(aio::IoQueue& queue, const TokenizerFiles& tokenizer) {
  SLUICE_CHECK(tokenizer.kind != Kind::kUnknown, "its vocabulary is unknown");
  if (tokenizer.kind == Kind::kBytes) return byte_vocabulary();
  return read_vocabulary(queue, tokenizer.path);
}

bool is_tokenizer_file(std::string_view name) {
  return name == kTokenizerName || name == kGenerationConfigName ||
         std::find(std::begin(kOtherNames), std::end(kOtherNames), name) != std::end(kOtherNames);
}

Status write_special_tokens(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                            const std::string& folder) {
  const std::string path = in_folder(folder, kGenerationConfigName);
  SLUICE_ASSIGN_OR_RETURN(std::string original, read_if_there(queue, path));
  if (original.empty() && !tokenizer.source.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        original, read_if_there(queue, in_folder(tokenizer.folder(), kGenerationConfigName)));
  }
  if (tokenizer.special.empty() && original.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          generation_config_text(tokenizer.special, original));
  return aio::write_small_file(queue, path, text);
}

Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens) {
  SLUICE_RETURN_IF_ERROR(write_special_tokens(queue, tokenizer, folder));
  if (tokenizer.kind == Kind::kUnknown) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string text, tokenizer_text(queue, tokenizer));
  if (!tokenizer.path.empty()) SLUICE_RETURN_IF_ERROR(copy_others(queue, tokenizer, folder));
  const std::string config_path = in_folder(folder, kConfigName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(config_path));
  if (!there) {
    SLUICE_ASSIGN_OR_RETURN(const std::string config,
                            tokenizer_config(queue, tokenizer, context_tokens));
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue, config_path, config));
  }
  return aio::write_small_file(queue, in_folder(folder, kTokenizerName), text);
}

}  // namespace sluice::engine
