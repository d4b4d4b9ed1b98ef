#include "tools/cli/marked_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

namespace sluice::tools {
namespace {

constexpr const char* kIndent = "  ";
constexpr const char* kGreen = "\033[32m";
constexpr const char* kPlain = "\033[0m";
constexpr const char* kOpen = "\u27e6";
constexpr const char* kClose = "\u27e7";

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};
// In ascending order: control characters, the brackets, characters that reorder or hide text.
constexpr std::array<Range, 14> kEscaped = {{
    {0x00, 0x08},
    {0x0b, 0x1f},
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

std::string printable(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const auto character = first_character(text);
    const std::size_t bytes = character ? character->bytes : 1;
    if (character && !is_escaped(character->code))
      made += text.substr(0, bytes);
    else
      made += escape(character ? character->code : static_cast<unsigned char>(text[0]));
    text.remove_prefix(bytes);
  }
  return made;
}

std::string marked_lines(std::span<const TextSegment> segments, Marks marks) {
  std::string made;
  bool fresh = true;  // at the beginning of a line
  const auto begin_line = [&] {
    if (std::exchange(fresh, false)) made += kIndent;
  };
  for (const TextSegment& segment : segments) {
    if (segment.text.empty()) continue;
    const bool in_brackets = segment.marked && marks == Marks::kBrackets;
    const bool in_colour = segment.marked && marks == Marks::kColour;
    if (in_brackets) begin_line();
    if (in_brackets) made += kOpen;
    bool painted = false;  // set anew on each line, as pagers show them
    for (const char letter : printable(segment.text)) {
      fresh = letter == '\n' ? true : (begin_line(), false);
      if (painted != (in_colour && !fresh)) made += painted ? kPlain : kGreen;
      painted = in_colour && !fresh;
      made += letter;
    }
    if (painted) made += kPlain;
    if (in_brackets) begin_line();
    if (in_brackets) made += kClose;
  }
  if (made.empty()) begin_line();
  return fresh ? made : made + "\n";
}

}  // namespace sluice::tools
