#include "engine/comm/launcher_text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

namespace sluice::engine {

namespace {

// Bytes of the first character of the text; 0: it is a control character, or not UTF-8.
std::size_t printable_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  if (first == 0xc2 && second < 0xa0) return 0;  // C1
  // U+2028 to U+202E, U+2066 to U+2069: line ends and text direction
  if (first == 0xe2 && (second == 0x80 || second == 0x81)) {
    const auto third = static_cast<unsigned char>(text[2]);
    if (second == 0x80 ? third >= 0xa8 && third <= 0xae : third >= 0xa6 && third <= 0xa9) return 0;
  }
  return bytes;
}

}  // namespace

Error wrong(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

std::string shown(std::string_view text, std::size_t most) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string all;
  for (std::size_t i = 0; i < text.size();) {
    if (i >= most) return all + "...";
    const std::size_t bytes = printable_bytes(text.substr(i));
    if (bytes > 0) {
      all += text.substr(i, bytes);
    } else {
      const auto byte = static_cast<unsigned char>(text[i]);
      all.append("\\x").append(1, kDigits[byte >> 4U]).append(1, kDigits[byte & 15U]);
    }
    i += std::max<std::size_t>(bytes, 1);
  }
  return all;
}

std::optional<int> whole_number(std::string_view text, int most) {
  int value = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

}  // namespace sluice::engine
