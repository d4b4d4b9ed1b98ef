#include "tools/tune/merge_config.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/bounded_json.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& root, std::string_view path, Json value) {
  Json* at = &root;
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    at = &(*at)[std::string(path.substr(0, dot))];
    if (!at->is_object()) *at = Json::object();
    path.remove_prefix(dot + 1);
  }
  (*at)[std::string(path)] = std::move(value);
}

// Interprets text like resolve(): JSON, else a string.
Json value_of(const std::string& text) {
  Json value = json_or_discarded<Json>(text);
  return value.is_discarded() ? Json(text) : value;
}

std::string merged_text(const config::Sources& sources) {
  Json root = Json::object();
  if (sources.run_file) {
    const auto text = config::plain_json(*sources.run_file);
    if (text.ok()) root = json_or_discarded<Json>(*text);
  }
  if (!root.is_object()) return {};
  for (const std::string& override_text : sources.overrides) {
    const std::size_t equals = override_text.find('=');
    put(root, std::string_view(override_text).substr(0, equals),
        value_of(override_text.substr(equals + 1)));
  }
  return root.dump(2) + "\n";
}

}  // namespace

config::Sources with_changes(const config::Sources& sources, const std::vector<KeyValue>& changes) {
  config::Sources changed = sources;
  for (const KeyValue& change : changes)
    changed.overrides.push_back(change.key + "=" + change.json);
  return changed;
}

Result<std::string> merged_config(const config::Sources& sources,
                                  const std::vector<KeyValue>& changes) {
  const config::Sources changed = with_changes(sources, changes);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved wanted, config::resolve(changed));
  const std::string whole = config::to_json(wanted);
  if (sources.deepspeed) return whole;
  const std::string text = merged_text(changed);
  const auto resolved =
      config::resolve({.run_file = config::Source{.name = "the merged file", .text = text},
                       .deepspeed = {},
                       .overrides = {},
                       .world_size = sources.world_size,
                       .answers = sources.answers});
  const bool is_same =
      resolved.ok() && config::to_json(resolved->config) == config::to_json(wanted.config);
  return is_same ? text : whole;
}

}  // namespace sluice::tools
