#include "engine/config/relaxed_json.h"

#include <algorithm>
#include <cstddef>

namespace sluice::config {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '+';
}

bool starts_word(char c) { return is_word(c) && c != '-' && c != '+' && (c < '0' || c > '9'); }

// Just past the string that begins at `begin`; the end of the text where it does not end.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  std::size_t at = begin + 1;
  while (at < text.size() && text[at] != '"' && text[at] != '\n') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// Just past the comment that begins at `begin`; `begin` where none does. A block comment that does
// not end is none, so that the parser names the place.
std::size_t end_of_comment(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  if (rest.starts_with('#') || rest.starts_with("//"))
    return std::min(text.find('\n', begin), text.size());
  if (!rest.starts_with("/*")) return begin;
  const std::size_t end = text.find("*/", begin + 2);
  return end == std::string_view::npos ? begin : end + 2;
}

// Blank where comments are; nothing else is changed.
std::string without_comments(std::string_view relaxed) {
  std::string text(relaxed);
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(relaxed, at);
      continue;
    }
    const std::size_t end = end_of_comment(relaxed, at);
    for (std::size_t i = at; i < end; ++i)
      if (!is_space(text[i])) text[i] = ' ';
    at = std::max(end, at + 1);
  }
  return text;
}

char next_that_is_not_space(std::string_view text, std::size_t from) {
  const std::size_t at = text.find_first_not_of(kSpace, from);
  return at == std::string_view::npos ? '\0' : text[at];
}

}  // namespace

std::string strict_json(std::string_view relaxed) {
  const std::string text = without_comments(relaxed);
  std::string strict;
  strict.reserve(text.size());
  char before = '\0';  // the last one that is not space
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    std::size_t end = at + 1;
    bool quoted = false;
    if (c == '"') {
      end = end_of_string(text, at);
    } else if (starts_word(c)) {
      while (end < text.size() && is_word(text[end])) ++end;
      quoted = (before == '{' || before == ',') && next_that_is_not_space(text, end) == ':';
    }
    const char after = next_that_is_not_space(text, end);
    const bool trails = c == ',' && (after == '}' || after == ']') && before != '{' &&
                        before != '[' && before != ',' && before != ':';
    const std::string token = text.substr(at, end - at);
    if (quoted) strict += '"';
    strict += trails ? " " : token == "True" ? "true" : token == "False" ? "false" : token;
    if (quoted) strict += '"';
    if (!is_space(c)) before = c;
    at = end;
  }
  return strict;
}

}  // namespace sluice::config
