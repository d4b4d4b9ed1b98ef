#include "engine/data/tokenizer_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "aio/bounded_json.h"
#include "engine/data/sha256.h"

namespace sluice::data {
namespace {

using Json = nlohmann::json;
using Entry = std::pair<std::int64_t, std::string>;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 32;

Error wrong(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "it is not a tokenizer.json: " + what);
}

Status add(const Json& id, const std::string& text, std::set<Entry>& entries) {
  if (!id.is_number_integer() || id < 0 || id >= kMostTokens)
    return wrong("a token has the number " + id.dump());
  entries.emplace(id.get<std::int64_t>(), text);
  return {};
}

// BPE, WordPiece and WordLevel: {"the": 5, ...}. Unigram: [["the", -3.2], ...].
Status add_vocabulary(const Json& vocabulary, std::set<Entry>& entries) {
  if (vocabulary.is_object()) {
    for (const auto& [text, id] : vocabulary.items())
      SLUICE_RETURN_IF_ERROR(add(id, text, entries));
    return {};
  }
  if (!vocabulary.is_array()) return wrong("\"model\" has no \"vocab\"");
  std::int64_t id = 0;
  for (const Json& entry : vocabulary) {
    if (!entry.is_array() || entry.empty() || !entry[0].is_string())
      return wrong("an entry of its \"vocab\" is not a token");
    SLUICE_RETURN_IF_ERROR(add(Json(id++), entry[0].get<std::string>(), entries));
  }
  return {};
}

std::string fingerprint(const std::vector<Entry>& entries) {
  Sha256 hash;
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
  const Json json = json_or_discarded<Json>(tokenizer_json);
  if (!json.is_object()) return wrong("it is not a JSON object");
  const Json model = json.value("model", Json());
  if (!model.is_object()) return wrong("it has no \"model\"");
  std::set<Entry> entries;
  SLUICE_RETURN_IF_ERROR(add_vocabulary(model.value("vocab", Json()), entries));
  TokenizerVocabulary vocabulary;
  const Json added = json.value("added_tokens", Json());
  for (const Json& token : added.is_array() ? added : Json::array()) {
    if (!token.is_object() || !token.value("content", Json()).is_string())
      return wrong("an entry of its \"added_tokens\" is not a token");
    const auto text = token.at("content").get<std::string>();
    const Json id = token.value("id", Json());
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

}  // namespace sluice::data
