#include "tools/support/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/config/nearest_key.h"
#include "tools/support/version.h"

namespace sluice::tools {
namespace {

// CLI11 takes "-1" for an option. "--runs -1" becomes "--runs=-1", so that the error is about the
// number.
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

// The subcommand selected so far, or the program itself.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.back());
}

// "sluice train"
std::string full_name(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

Error mistake(const CLI::App& app, const std::string& what) {
  const std::string name = full_name(innermost(app));
  const bool has_commands = !innermost(app).get_subcommands([](auto*) { return true; }).empty();
  const char* const between = what.ends_with('?') ? " " : "; ";
  return Error(ErrorCode::kInvalidArgument, what + between + name + " --help lists the " +
                                                (has_commands ? "commands" : "options"));
}

std::string did_you_mean(std::string_view word, const std::string& choices,
                         const std::string& prefix = "") {
  const std::string nearest = config::nearest_choice(word, choices);
  return nearest.empty() ? "" : ": did you mean " + prefix + nearest + "?";
}

// Called before CLI11 parses: it would call an unknown command an unexpected argument.
Status check_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](auto*) { return true; })) {
    if (!words.empty() && command->get_name() == words[0]) return {};
    if (!command->get_group().empty()) names += (names.empty() ? "" : "|") + command->get_name();
  }
  if (names.empty()) return {};
  if (words.empty()) return mistake(app, "no command was given");
  if (words[0].starts_with('-')) {
    const std::string name = words[0].substr(0, words[0].find('='));
    if (app.get_option_no_throw(name) != nullptr) return {};
    return mistake(app, "there is no option " + name);
  }
  return mistake(app, "there is no command \"" + words[0] + "\"" + did_you_mean(words[0], names));
}

// CLI11 would accept "--json=maybe" as "--json". --resume=NAME does have a value.
void let_flags_take_no_value(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_expected_max() == 0 && option->get_fnames().empty())
      option->disable_flag_override();
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    let_flags_take_no_value(*command);
}

// For "--out=" CLI11 would take the next word as the value.
Status check_inline_values(const CLI::App& app, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1)
      return mistake(app, word.substr(0, word.size() - 1) + ": the value is empty");
  }
  return {};
}

// An empty value would count as "not given".
Status check_values(const CLI::App& app) {
  for (const CLI::App* part : {&app, &innermost(app)}) {
    for (const CLI::Option* option : part->get_options()) {
      const auto& values = option->results();
      if (std::find(values.begin(), values.end(), "") != values.end())
        return mistake(app, option->get_name() + ": the value is empty");
    }
  }
  return {};
}

std::string unknown_word(const CLI::App& app, const CLI::ExtrasError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> words = app.remaining(true);
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& word) { return word.starts_with('-'); });
  if (flag == words.end())
    return words.empty() ? error.what() : "\"" + words.front() + "\" was not expected";
  const std::string name = flag->substr(0, flag->find('='));
  std::string known;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& one : option->get_lnames()) known += (known.empty() ? "" : "|") + one;
  const std::size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  return "there is no option " + name + did_you_mean(name.substr(dashes), known, "--");
}

// CLI11's sentence as one line without its full stop.
std::string plain(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string with(std::string text, std::string_view word, std::string_view replacement) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? text : text.replace(at, word.size(), replacement);
}

Status parse(CLI::App& app, const std::vector<std::string>& words, bool& shown) {
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    shown = true;
    return {};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    const bool is_flag = text.find("flag override") != std::string::npos;
    const std::string name = text.substr(0, text.find_first_of(": "));
    return mistake(app, (name[0] == '-' ? name : "--" + name) +
                            (is_flag ? ": takes no value" : ": give exactly one value"));
  } catch (const CLI::ConversionError& error) {
    constexpr std::string_view kPrefix = "Could not convert: ";
    const std::string text = plain(error.what());
    if (!text.starts_with(kPrefix)) return mistake(app, text);
    const std::size_t equals = text.find(" = ");
    if (equals == std::string::npos) return mistake(app, text);
    return mistake(app, text.substr(kPrefix.size(), equals - kPrefix.size()) + ": \"" +
                            text.substr(equals + 3) + "\" is not a possible number");
  } catch (const CLI::ExtrasError& error) {
    return mistake(app, unknown_word(app, error));
  } catch (const CLI::ExcludesError& error) {
    return mistake(app, with(plain(error.what()), " excludes ", " cannot be combined with "));
  } catch (const CLI::RequiresError& error) {
    return mistake(app, with(plain(error.what()), " requires ", " needs "));
  } catch (const CLI::ParseError& error) {
    return mistake(app, plain(error.what()));
  }
  return {};
}

}  // namespace

Result<bool> parse_words(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", version_text(app.get_name()));
  app.get_formatter()->column_width(26);
  app.get_formatter()->label("OPTIONS", "options");
  const std::vector<std::string> words = joined_negatives(argc, argv);
  let_flags_take_no_value(app);
  SLUICE_RETURN_IF_ERROR(check_command(app, words));
  SLUICE_RETURN_IF_ERROR(check_inline_values(app, words));
  bool shown = false;
  SLUICE_RETURN_IF_ERROR(parse(app, words, shown));
  if (shown) return false;
  SLUICE_RETURN_IF_ERROR(check_values(app));
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
    text += '\'';
  }
  return text;
}

}  // namespace sluice::tools
