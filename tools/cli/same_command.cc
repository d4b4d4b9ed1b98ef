#include "tools/cli/same_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

namespace sluice::tools {

std::string shell_word(const std::string& word) {
  const auto plain = [](char c) {
    constexpr std::string_view kMarks = "_@%+=:,./-";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string same_command(const CLI::App& command, const std::set<std::string>& without) {
  std::string text = "sluice " + command.get_name();
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || without.contains(name)) continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    if (is_flag) {
      text += " " + name;
      continue;
    }
    for (const std::string& value : option->results())
      text += " " + (option->nonpositional() ? name + " " : std::string()) + shell_word(value);
  }
  return text;
}

}  // namespace sluice::tools
