// A JSON document that contains its own checksum: {"checksum": "<16 hex digits>", "content": ...}.
// The checksum is XXH3-64 of the content, serialised without white space and with sorted keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::swap {

std::string to_sealed_text(const nlohmann::json& content);
// Accepts any bytes; kCorrupt says what is wrong.
Result<nlohmann::json> parse_sealed_text(std::string_view text);

std::string to_hex(std::uint64_t value);  // 16 digits
Result<std::uint64_t> parse_hex(const std::string& text);

}  // namespace sluice::swap
