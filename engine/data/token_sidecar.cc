#include "engine/data/token_sidecar.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"

namespace sluice::data {
namespace {

using Json = nlohmann::json;

Error wrong(const std::string& what) {
  return Error(ErrorCode::kCorrupt, what +
                                        ": run tools/prepare again, or remove the file and set the "
                                        "token type in the configuration");
}

Result<std::string> text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return wrong("\"" + std::string(key) + "\" is missing, or is not text");
  }
  return found->get<std::string>();
}

Result<std::string> optional_text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::string();
  return text_of(object, key);
}

Result<std::uint64_t> count_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || *found == 0U) {
    return wrong("\"" + std::string(key) + "\" is missing, or is not a count of 1 or more");
  }
  return found->get<std::uint64_t>();
}

}  // namespace

Result<TokenSidecar> parse_token_sidecar(std::string_view text) {
  const Json json = json_or_discarded<Json>(text);
  if (!json.is_object()) return wrong("is not a JSON object, or is nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const std::string format, text_of(json, "format"));
  if (format != "sluice-tokens") return wrong("\"format\" is not \"sluice-tokens\"");
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t version, count_of(json, "version"));
  constexpr std::uint64_t kWithDocuments = 2;
  if (version > kWithDocuments) {
    return Error(
        ErrorCode::kNewerVersion,
        "is of version " + std::to_string(version) +
            ", but only versions 1 and 2 are supported: use the tools/prepare of this release");
  }
  TokenSidecar sidecar;
  if (version == kWithDocuments) {
    SLUICE_ASSIGN_OR_RETURN(sidecar.documents, count_of(json, "documents"));
    SLUICE_ASSIGN_OR_RETURN(sidecar.trained_tokens, count_of(json, "trained_tokens"));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string dtype, text_of(json, "dtype"));
  const auto type = token_type_named(dtype);
  if (!type) return wrong("\"dtype\" is neither \"uint16\" nor \"uint32\"");
  sidecar.type = *type;
  SLUICE_ASSIGN_OR_RETURN(sidecar.token_count, count_of(json, "tokens"));
  SLUICE_ASSIGN_OR_RETURN(sidecar.vocab_size, count_of(json, "vocab_size"));
  const auto tokenizer = json.find("tokenizer");
  if (tokenizer == json.end() || !tokenizer->is_object()) {
    return wrong("\"tokenizer\" is missing, or is not an object");
  }
  SLUICE_ASSIGN_OR_RETURN(sidecar.tokenizer, text_of(*tokenizer, "kind"));
  const auto end = tokenizer->find("end_of_text");
  if (end != tokenizer->end() && !end->is_null()) {
    if (!end->is_number_unsigned() || *end >= sidecar.vocab_size)
      return wrong("\"end_of_text\" is not a token of the vocabulary");
    sidecar.end_of_text = end->get<std::int64_t>();
  }
  SLUICE_ASSIGN_OR_RETURN(sidecar.tokenizer_sha256, optional_text_of(*tokenizer, "sha256"));
  SLUICE_ASSIGN_OR_RETURN(sidecar.vocabulary_sha256,
                          optional_text_of(*tokenizer, "vocabulary_sha256"));
  return sidecar;
}

namespace {

using OrderedJson = nlohmann::ordered_json;

std::optional<std::uint64_t> known_count(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

OrderedJson object_of(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_object() ? OrderedJson::object() : *found;
}

TokenRecord::Preparation preparation_of(const OrderedJson& json) {
  TokenRecord::Preparation made;
  made.conversations = known_count(json, "conversations");
  made.cut = known_count(json, "cut").value_or(0);
  made.replaced = known_count(json, "replaced").value_or(0);
  const OrderedJson left_out = object_of(json, "left_out");
  for (const auto& [reason, count] : left_out.items())
    if (count.is_number_unsigned()) made.left_out.emplace_back(reason, count.get<std::uint64_t>());
  std::stable_sort(made.left_out.begin(), made.left_out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return made;
}

}  // namespace

TokenRecord parse_token_record(std::string_view sidecar_text) {
  const OrderedJson json = json_or_discarded<OrderedJson>(sidecar_text);
  TokenRecord record;
  if (!json.is_object()) return record;
  record.sources = known_count(json, "source_count");
  record.source_bytes = known_count(json, "source_bytes");
  record.documents = known_count(json, "documents");
  const OrderedJson chat = object_of(json, "chat");
  const auto train_on = chat.find("train_on");
  if (train_on != chat.end() && train_on->is_string())
    record.train_on = train_on->get<std::string>();
  const auto preparation = json.find("preparation");
  if (preparation != json.end() && preparation->is_object())
    record.preparation = preparation_of(*preparation);
  return record;
}

}  // namespace sluice::data
