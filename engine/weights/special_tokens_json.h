// Special tokens as values in a Hugging Face JSON object.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/weights/special_tokens.h"

namespace sluice::engine {

// null, a token, or a list of tokens.
inline nlohmann::ordered_json to_json(const std::vector<std::int64_t>& tokens) {
  if (tokens.empty()) return nullptr;
  return tokens.size() == 1 ? nlohmann::ordered_json(tokens.front())
                            : nlohmann::ordered_json(tokens);
}

inline nlohmann::ordered_json to_json(const std::optional<std::int64_t>& token) {
  return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json();
}

}  // namespace sluice::engine
