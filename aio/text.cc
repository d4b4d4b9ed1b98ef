#include "aio/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>

namespace sluice {
namespace {

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};
// In ascending order: control characters, the brackets, characters that reorder or hide text.
constexpr std::array<Range, 13> kEscaped = {{
    {0x00, 0x1f},
    {0x7f, 0x9f},
    {0xad, 0xad},
    {0x61c, 0x61c},
    {0x200b, 0x200b},
    {0x200e, 0x200f},
    {0x2028, 0x202e},
    {0x2060, 0x206f},
    {0x27e6, 0x27e7},
    {0xd800, 0xdfff},
    {0xfeff, 0xfeff},
    {0xfff9, 0xfffb},
    {0xe0000, 0xe0fff},
}};

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
};

// The first character of `text`; nullopt: it is not UTF-8.
std::optional<Character> first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  constexpr unsigned kAscii = 0x80;
  constexpr unsigned kFollowMask = 0xc0, kFollow = 0x80, kFollowBits = 6, kFollowValue = 0x3f;
  struct Lead {
    unsigned mask, bits;
    std::uint32_t least;
  };
  constexpr std::array<Lead, 3> kLeads = {
      {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}}};
  constexpr std::uint32_t kLargest = 0x10ffff;
  if (byte(0) < kAscii) return Character{.code = byte(0)};
  for (std::size_t more = 1; more <= kLeads.size(); ++more) {
    const Lead& lead = kLeads[more - 1];
    if ((byte(0) & lead.mask) != lead.bits) continue;
    if (text.size() <= more) return std::nullopt;
    std::uint32_t code = byte(0) & ~lead.mask & 0xffU;
    for (std::size_t i = 1; i <= more; ++i) {
      if ((byte(i) & kFollowMask) != kFollow) return std::nullopt;
      code = (code << kFollowBits) | (byte(i) & kFollowValue);
    }
    if (code < lead.least || code > kLargest) return std::nullopt;
    return Character{.code = code, .bytes = more + 1};
  }
  return std::nullopt;
}

bool is_escaped(std::uint32_t code) {
  const auto* const range =
      std::lower_bound(kEscaped.begin(), kEscaped.end(), code,
                       [](const Range& one, std::uint32_t value) { return one.last < value; });
  return range != kEscaped.end() && code >= range->first;
}

std::string escape(std::uint32_t code) {
  std::array<char, 11> text{};
  std::snprintf(text.data(), text.size(),
                code <= 0xff     ? "\\x%02x"
                : code <= 0xffff ? "\\u%04x"
                                 : "\\U%08x",
                code);
  return text.data();
}

}  // namespace

std::string significant(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

std::string percent(double share, int decimals) {
  std::array<char, 512> text{};  // the largest double has 309 digits
  std::snprintf(text.data(), text.size(), "%.*f%%", decimals, 100 * share);
  return text.data();
}

std::string joined(std::span<const std::string> parts, std::string_view between) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += between;
    text += part;
  }
  return text;
}

std::string shell_word(std::string_view word) {
  const auto plain = [](char c) {
    constexpr std::string_view kMarks = "_@%+=:,./-";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string printable(std::string_view text, std::string_view kept) {
  std::string made;
  while (!text.empty()) {
    const auto character = first_character(text);
    const std::size_t bytes = character ? character->bytes : 1;
    const bool is_kept = kept.find(text.front()) != std::string_view::npos;
    if (is_kept || (character && !is_escaped(character->code)))
      made += text.substr(0, bytes);
    else
      made += escape(character ? character->code : static_cast<unsigned char>(text[0]));
    text.remove_prefix(bytes);
  }
  return made;
}

}  // namespace sluice
