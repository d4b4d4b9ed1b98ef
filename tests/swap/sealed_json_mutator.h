// SealedJsonMutator: sealed JSON as a faulty drive or a stranger would leave it.
#pragma once

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "swap/sealed_json.h"

namespace sluice::swap {

inline constexpr std::string_view kJsonWords[] = {
    "0",          "-1",      "1e400", "18446744073709551615",
    "null",       "true",    "{}",    "[]",
    "[[[[",       "\"",      ",",     "\xff",
    "}",          "\\u0000", "1.5",   "\"files\":",
    "4294967296", " "};

class SealedJsonMutator {
 public:
  explicit SealedJsonMutator(std::uint64_t seed) : random_(seed) {}

  // The text with some damage; rarely none.
  std::string damaged(std::string text) {
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) edit(text);
    return text;
  }
  // Other content with a valid checksum: what the seal cannot detect, the parser must.
  std::string sealed(nlohmann::json content) {
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) edit(content);
    return to_sealed_text(content);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  void edit(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        text.erase(at, 1 + below(8));
        return;
      case 2:
        text.insert(at, kJsonWords[below(std::size(kJsonWords))]);
        return;
      case 3:
        text.resize(at);
        return;
      case 4:
        text.insert(at, text.substr(below(text.size() + 1), below(200)));
        return;
      default: {  // a number becomes another
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos)
          text.replace(digit, 1, kJsonWords[below(std::size(kJsonWords))]);
      }
    }
  }

  // Another value at a random place of the tree.
  void edit(nlohmann::json& value) {
    if (value.is_structured() && !value.empty() && below(8) != 0) {
      auto at = value.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(below(value.size())));
      if (below(12) == 0) {
        value.erase(at);
        return;
      }
      edit(*at);
      return;
    }
    if (value.is_string() && below(2) == 0) {
      auto text = value.get<std::string>();
      edit(text);
      value = std::move(text);
      return;
    }
    const nlohmann::json others[] = {nullptr, true,
                                     -1,      0,
                                     1,       1ULL << 63,
                                     1e30,    "step",
                                     "",      {1, 2},
                                     2,       nlohmann::json::object(),
                                     4096,    "0123456789abcdef"};
    value = others[below(std::size(others))];
  }

  std::mt19937_64 random_;
};

}  // namespace sluice::swap
