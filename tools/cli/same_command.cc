#include "tools/cli/same_command.h"

#include <CLI/CLI.hpp>

#include "aio/text.h"

namespace sluice::tools {

namespace {

std::string options_of(const CLI::App& app, const std::set<std::string>& without) {
  std::string text;
  for (const CLI::Option* const option : app.get_options()) {
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

}  // namespace

std::string same_command(const CLI::App& command, const std::set<std::string>& without) {
  return "sluice" + options_of(*command.get_parent(), without) + " " + command.get_name() +
         options_of(command, without);
}

}  // namespace sluice::tools
