#include "engine/config/json_text.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"

namespace sluice::config {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '+';
}

bool starts_word(char c) { return is_word(c) && c != '-' && c != '+' && (c < '0' || c > '9'); }

// The position after the string that begins at `begin`; the end of the line or text if
// unterminated.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  std::size_t at = begin + 1;
  while (at < text.size() && text[at] != '"' && text[at] != '\n') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

// The position after the comment that begins at `begin`; `begin` if there is none. An unterminated
// block comment is not skipped, so that the parser reports its position.
std::size_t end_of_comment(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  if (rest.starts_with('#') || rest.starts_with("//"))
    return std::min(text.find('\n', begin), text.size());
  if (!rest.starts_with("/*")) return begin;
  const std::size_t end = text.find("*/", begin + 2);
  return end == std::string_view::npos ? begin : end + 2;
}

// Replaces comments by blanks, and changes nothing else.
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

// Python's words for true, false and null.
std::string_view as_json(std::string_view token) {
  return token == "True" ? "true" : token == "False" ? "false" : token == "None" ? "null" : token;
}

// The same text as strict JSON, on the same lines: removed characters become blanks, and columns
// change only after a key that gets quotes.
std::string strict_json(std::string_view relaxed) {
  const std::string text = without_comments(relaxed);
  std::string strict;
  strict.reserve(text.size());
  char before = '\0';  // the last character that is not white space
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
    strict += trails ? " " : as_json(token);
    if (quoted) strict += '"';
    if (!is_space(c)) before = c;
    at = end;
  }
  return strict;
}

constexpr std::size_t kLongestText = 80;

std::string shorten(std::string text) {
  if (text.size() <= kLongestText) return text;
  std::size_t end = kLongestText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// 0x4, 4_000, 08, +1 and the like.
bool is_wrong_number(std::string_view word) {
  constexpr std::string_view kStarts = "0123456789+-.";
  return !word.empty() && kStarts.find(word.front()) != std::string_view::npos &&
         json_or_discarded<Json>(word).is_discarded();
}

// Advice for common text that is not JSON. `end` is the position after the last byte read, `reason`
// the parser's message.
std::string advice_at(std::string_view text, std::size_t end, std::string_view reason) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "the file is empty";
  const std::size_t at = std::min(end, text.size());
  const char last = at > 0 ? text[at - 1] : '\0';
  constexpr std::string_view kBetweenWords = " \t\r\n{}[]:,";
  const std::size_t word = text.find_last_of(kBetweenWords, at > 0 ? at - 1 : 0);
  const char first = word + 1 < text.size() ? text[word + 1] : '\0';
  if (text.substr(std::min(word + 1, text.size())).starts_with("/*"))
    return "the comment is not closed: */ is missing";
  if (last == '\'') return "JSON strings need double quotes";
  const std::string_view from_word = text.substr(std::min(word + 1, text.size()));
  if (from_word.starts_with("NaN") || from_word.starts_with("Infinity")) {
    return "JSON has no Infinity or NaN: leave the key out to get its default";
  }
  for (const std::string_view python : {"True", "False", "None", "TRUE", "FALSE", "NULL"}) {
    if (from_word.starts_with(python)) return "JSON writes true, false and null in lower case";
  }
  const std::string_view whole_word = from_word.substr(0, from_word.find_first_of(kBetweenWords));
  if (is_wrong_number(whole_word)) {
    return printable(whole_word) +
           " is not a JSON number: write decimal digits, such as 4000, 0.5 or 1e-5";
  }
  // DeepSpeed's parser accepts both of the following; no configuration needs them.
  const bool in_list = reason.find("; expected ']'") != std::string_view::npos;
  if ((in_list || reason.find("; expected '}'") != std::string_view::npos) && last != '}' &&
      last != ']' && last != ':' && reason.find("end of input") == std::string_view::npos) {
    return "two entries need a comma between them";
  }
  if (is_letter(first) && reason.find("invalid literal") != std::string_view::npos) {
    return "keys and values that are text need double quotes: \"" + printable(whole_word) + "\"";
  }
  if (last == '}' || last == ']') {
    const std::size_t before = text.find_last_not_of(" \t\r\n", at >= 2 ? at - 2 : 0);
    if (before != std::string_view::npos && text[before] == ',') {
      return "JSON allows no comma after the last entry";
    }
  }
  return {};
}

// Extracts "syntax error while parsing value - unexpected '}'" from the library's longer message.
std::string plain_reason(std::string_view what) {
  for (const std::string_view start : {"syntax error ", "] "}) {
    const std::size_t at = what.find(start);
    if (at != std::string_view::npos) {
      what.remove_prefix(at + start.size());
      break;
    }
  }
  return printable(what);
}

std::string place_in(std::string_view text, std::size_t end) {
  const std::string_view read = text.substr(0, end > 0 ? end - 1 : 0);
  const auto line = 1 + std::count(read.begin(), read.end(), '\n');
  const std::size_t start = read.rfind('\n') == std::string_view::npos ? 0 : read.rfind('\n') + 1;
  return std::to_string(line) + ":" + std::to_string(read.size() - start + 1);
}

// Builds the tree, and rejects what the library would accept: duplicate keys, and trees too deep or
// too wide.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  bool null() override { return add(Json()) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t& /*value*/) override { return false; }  // does not occur in text
  bool start_object(std::size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Json& object = *open_.back();
    if (object.contains(value)) {
      return fail("the key " + printable(path() + value) + " is given twice: remove one");
    }
    if (object.size() >= kMaxKeysOfObject) {
      return fail("an object with more than " + std::to_string(kMaxKeysOfObject) +
                  " keys is too large to be a configuration");
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& error) override {
    const std::string reason = plain_reason(error.what());
    std::string sentence = place_in(text_, position) + ": " + reason;
    const std::string advice = advice_at(text_, position, reason);
    if (!advice.empty()) sentence += ": " + advice;
    error_ = Error(ErrorCode::kInvalidArgument, name_ + ":" + sentence);
    return false;
  }

  Json take_root() { return std::move(root_); }
  std::optional<Error>& error() { return error_; }

 private:
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  bool open(Json container) {
    if (open_.size() >= kMaxDepth) {
      return fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if (!open_.empty()) keys_.push_back(open_.back()->is_array() ? "[]" : key_);
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    if (!keys_.empty()) keys_.pop_back();
    return true;
  }

  std::string path() const {
    std::string path;
    for (const auto& key : keys_) path += key + ".";
    return path;
  }

  bool fail(const std::string& reason) {
    error_ = Error(ErrorCode::kInvalidArgument, name_ + ": " + reason);
    return false;
  }

  std::string name_;
  std::string_view text_;
  Json root_;
  std::vector<Json*> open_;  // a container does not move while a part of it is open
  std::vector<std::string> keys_;
  std::string key_;
  std::optional<Error> error_;
};

}  // namespace

Result<Json> parse_json(std::string_view name, std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string(name) + ": longer than 1 MiB, so it is not a configuration");
  }
  TreeBuilder builder(name, text);
  if (!Json::sax_parse(text, &builder)) {
    if (builder.error()) return *std::move(builder.error());
    return Error(ErrorCode::kInvalidArgument, std::string(name) + ": not JSON");
  }
  return builder.take_root();
}

Result<Json> read_document(std::string_view name, std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    return Error(ErrorCode::kInvalidArgument,
                 std::string(name) + ": this is UTF-16: save the file as UTF-8");
  return parse_json(name, text.size() > kMaxTextBytes ? text : strict_json(text));
}

std::string short_text(const Json& value) { return shorten(dump(value)); }

std::string printable(std::string_view text) {
  const std::string quoted = dump(Json(std::string(text)));
  return shorten(quoted.substr(1, quoted.size() - 2));
}

bool is_valid_utf8(std::string_view text) {
  try {
    static_cast<void>(Json(std::string(text)).dump());
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

}  // namespace sluice::config
