#include "swap/sealed_json.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <span>

#include "aio/bounded_json.h"
#include "swap/chunk_hash.h"

namespace sluice::swap {
namespace {

std::string checksum_of(const nlohmann::json& content) {
  const std::string text = content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return to_hex(plain_hash(std::as_bytes(std::span(text))));
}

Error corrupt(const char* what) { return Error(ErrorCode::kCorrupt, what); }

}  // namespace

std::string to_hex(std::uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

Result<std::uint64_t> parse_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    return corrupt("a number of 16 hexadecimal digits was expected");
  return value;
}

std::string to_sealed_text(const nlohmann::json& content) {
  const nlohmann::json document = {{"checksum", checksum_of(content)}, {"content", content}};
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<nlohmann::json> parse_sealed_text(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const auto document, read_json<nlohmann::json>(text));
  if (!document.is_object() || !document.contains("checksum") || !document.contains("content") ||
      !document["checksum"].is_string())
    return corrupt("it has no checksum and content");
  if (document["checksum"].get<std::string>() != checksum_of(document["content"]))
    return corrupt("its content does not match its checksum (damaged, or edited by hand)");
  return document["content"];
}

}  // namespace sluice::swap
