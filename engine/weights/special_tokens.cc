#include "engine/weights/special_tokens.h"

#include <algorithm>
#include <cstdint>

#include "aio/bounded_json.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBegin = "bos_token_id";
constexpr const char* kEnd = "eos_token_id";
constexpr const char* kPadding = "pad_token_id";

Error no_token(const char* key, const Json& value) {
  return Error(ErrorCode::kCorrupt,
               "\"" + std::string(key) + "\" is " + value.dump() + ", which is not a token");
}

bool is_token(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
}

Result<std::vector<std::int64_t>> tokens_of(const Json& object, const char* key) {
  std::vector<std::int64_t> tokens;
  const Json value = object.value(key, Json());
  if (value.is_null()) return tokens;
  for (const Json& token : value.is_array() ? value : Json::array({value})) {
    if (!is_token(token)) return no_token(key, value);
    if (token >= 0) tokens.push_back(token.get<std::int64_t>());
  }
  return tokens;
}

Result<std::optional<std::int64_t>> token_of(const Json& object, const char* key) {
  SLUICE_ASSIGN_OR_RETURN(const auto tokens, tokens_of(object, key));
  if (tokens.size() > 1) return no_token(key, object.at(key));
  return tokens.empty() ? std::nullopt : std::optional(tokens.front());
}

}  // namespace

bool SpecialTokens::ends_text(std::int64_t token) const {
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

SpecialTokens SpecialTokens::within(std::int64_t vocab) const {
  SpecialTokens kept;
  if (begin && *begin < vocab) kept.begin = begin;
  if (padding && *padding < vocab) kept.padding = padding;
  for (const std::int64_t end : ends)
    if (end < vocab) kept.ends.push_back(end);
  return kept;
}

SpecialTokens SpecialTokens::or_else(const SpecialTokens& other) const {
  return {.begin = begin ? begin : other.begin,
          .ends = ends.empty() ? other.ends : ends,
          .padding = padding ? padding : other.padding};
}

Result<SpecialTokens> parse_special_tokens(std::string_view json) {
  SLUICE_ASSIGN_OR_RETURN(const Json object, read_json_object<Json>(json));
  SpecialTokens tokens;
  SLUICE_ASSIGN_OR_RETURN(tokens.begin, token_of(object, kBegin));
  SLUICE_ASSIGN_OR_RETURN(tokens.ends, tokens_of(object, kEnd));
  SLUICE_ASSIGN_OR_RETURN(tokens.padding, token_of(object, kPadding));
  return tokens;
}

Result<std::string> generation_config_text(const SpecialTokens& tokens, std::string_view original) {
  Json json = Json::object();
  if (!original.empty()) {
    SLUICE_ASSIGN_OR_RETURN(json, read_json_object<Json>(original));
  }
  // With this key, transformers would derive the file from config.json again.
  json.erase("_from_model_config");
  for (const auto& [key, value] :
       {std::pair(kBegin, to_json(tokens.begin)), std::pair(kEnd, to_json(tokens.ends)),
        std::pair(kPadding, to_json(tokens.padding))}) {
    if (value.is_null()) {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace sluice::engine
