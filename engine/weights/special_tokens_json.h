// The keys of special tokens in a Hugging Face JSON object, for the files that are made of them.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/weights/special_tokens.h"

namespace sluice::engine {

// null, a token, or a list of several.
inline nlohmann::ordered_json to_json(const std::vector<std::int64_t>& tokens) {
  if (tokens.empty()) return nullptr;
  return tokens.size() == 1 ? nlohmann::ordered_json(tokens.front())
                            : nlohmann::ordered_json(tokens);
}

inline nlohmann::ordered_json to_json(const std::optional<std::int64_t>& token) {
  return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json();
}

}  // namespace sluice::engine
