#include "tools/support/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

#include "tools/support/version.h"

namespace sluice::tools {
namespace {

// CLI11 takes "-1" for an option: "--runs -1" becomes "--runs=-1", so that the complaint is about
// the number.
std::vector<std::string> joined_negatives(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool negative =
        word.size() > 1 && word[0] == '-' && word.find_first_of("0123456789.") == 1;
    if (negative && !words.empty() && words.back().compare(0, 2, "--") == 0 &&
        words.back().find('=') == std::string::npos)
      words.back() += "=" + word;
    else
      words.push_back(word);
  }
  return words;
}

}  // namespace

Result<bool> parse_words(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", app.get_name() + " " + std::string(kVersion));
  app.get_formatter()->column_width(26);
  app.get_formatter()->label("OPTIONS", "options");
  const std::string hint = "; " + app.get_name() + " --help lists the options";
  std::vector<std::string> words = joined_negatives(argc, argv);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    return false;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    const bool is_flag = text.find("flag override") != std::string::npos;
    const std::string name = text.substr(0, text.find_first_of(": "));
    return Error(ErrorCode::kInvalidArgument,
                 (name[0] == '-' ? name : "--" + name) +
                     (is_flag ? ": takes no value" : ": give exactly one value") + hint);
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
    for (char& letter : text)
      if (letter == '\n') letter = ' ';
    return Error(ErrorCode::kInvalidArgument, text + hint);
  }
  return true;
}

std::string command_text(std::string_view program, int argc, const char* const* argv) {
  std::string text(program);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$*?<>|&;()#~`") == std::string::npos;
    if (plain) {
      text += " " + word;
      continue;
    }
    text += " '";
    for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
    text += "'";
  }
  return text;
}

}  // namespace sluice::tools
