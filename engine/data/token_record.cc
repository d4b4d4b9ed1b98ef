#include "engine/data/token_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"

namespace sluice::data {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::uint64_t> count_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

Json object_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_object() ? Json::object() : *found;
}

TokenRecord::Preparation preparation_of(const Json& json) {
  TokenRecord::Preparation made;
  made.conversations = count_of(json, "conversations");
  made.cut = count_of(json, "cut").value_or(0);
  made.replaced = count_of(json, "replaced").value_or(0);
  const Json left_out = object_of(json, "left_out");
  for (const auto& [reason, count] : left_out.items())
    if (count.is_number_unsigned()) made.left_out.emplace_back(reason, count.get<std::uint64_t>());
  std::stable_sort(made.left_out.begin(), made.left_out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return made;
}

}  // namespace

TokenRecord parse_token_record(std::string_view sidecar_text) {
  const Json json = json_or_discarded<Json>(sidecar_text);
  TokenRecord record;
  if (!json.is_object()) return record;
  record.sources = count_of(json, "source_count");
  record.source_bytes = count_of(json, "source_bytes");
  record.documents = count_of(json, "documents");
  const Json chat = object_of(json, "chat");
  const auto train_on = chat.find("train_on");
  if (train_on != chat.end() && train_on->is_string())
    record.train_on = train_on->get<std::string>();
  const auto preparation = json.find("preparation");
  if (preparation != json.end() && preparation->is_object())
    record.preparation = preparation_of(*preparation);
  return record;
}

}  // namespace sluice::data
