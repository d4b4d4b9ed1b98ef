#include <algorithm>
#include <cctype>
#include <sstream>

#include "tools/cli/command_model.h"

namespace sluice::tools {
namespace {

// Escapes text for man(7): nothing in it is a request, and hyphens can be copied.
std::string plain(const std::string& text) {
  std::string safe;
  for (const char letter : text) {
    if (letter == '\\')
      safe += "\\e";
    else if (letter == '-')
      safe += "\\-";
    else
      safe += letter;
  }
  if (!safe.empty() && (safe.front() == '.' || safe.front() == '\'')) safe.insert(0, "\\&");
  return safe;
}

// Escapes text in lines of its own, each of which is safe at the beginning of a line.
std::string lines_of(const std::string& text) {
  std::string safe;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) safe += plain(line) + "\n";
  return safe;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string slanted(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string value_of(const OptionModel& option) {
  switch (option.value) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kInline:
      return "[=" + slanted("NAME") + "]";
    case ValueKind::kKey:
      return " " + slanted("KEY=VALUE");
    default:
      return " " + slanted(option.value_name);
  }
}

std::string options_of(const std::vector<OptionModel>& options) {
  std::string text;
  for (const OptionModel& option : options) {
    text += ".TP\n";
    for (std::size_t i = 0; i < option.names.size(); ++i)
      text += (i > 0 ? ", " : "") +
              (option.is_positional ? slanted(option.names[i]) : bold(option.names[i]));
    text += (option.is_positional ? "" : value_of(option)) + "\n";
    text += lines_of(option.description);
    const bool are_named = !option.choices.empty() &&
                           option.description.find(option.choices.back()) != std::string::npos;
    if (!option.choices.empty() && !are_named) {
      text += "One of";
      for (std::size_t i = 0; i < option.choices.size(); ++i)
        text += (i > 0 ? ", " : " ") + bold(option.choices[i]);
      text += ".\n";
    }
  }
  return text;
}

// Lines that begin with spaces are commands; the others are notes.
std::string footer_of(const std::string& footer) {
  std::string examples;
  std::string notes;
  std::istringstream stream(footer);
  for (std::string line; std::getline(stream, line);)
    (line.starts_with("  ") ? examples : notes) += plain(line) + "\n";
  std::string text;
  if (!notes.empty()) text += ".SH NOTES\n" + notes;
  if (!examples.empty()) text += ".SH EXAMPLES\n.nf\n" + examples + ".fi\n";
  return text;
}

std::string in_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return text;
}

}  // namespace

std::string manual_page(const CommandModel& program, const CommandModel* command,
                        const std::string& version) {
  const CommandModel& shown = command == nullptr ? program : *command;
  const std::string name = command == nullptr ? program.name : program.name + "-" + command->name;
  std::string text = ".TH \"" + in_capitals(name) + "\" 1 \"\" \"" + plain(version) + "\"\n";
  text += ".SH NAME\n" + plain(name) + " \\- " +
          lines_of(shown.description.substr(0, shown.description.find('\n')));
  text += ".SH SYNOPSIS\n" + bold(program.name);
  if (command != nullptr) text += " " + bold(command->name);
  if (!shown.options.empty()) text += " [" + slanted("options") + "]";
  if (!shown.commands.empty()) text += " " + slanted("COMMAND");
  for (const OptionModel& positional : shown.positionals)
    text += " " + slanted(positional.names.front()) + (positional.repeats ? " ..." : "");
  text += '\n';
  if (!shown.positionals.empty()) text += ".SH ARGUMENTS\n" + options_of(shown.positionals);
  if (!shown.commands.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandModel& one : shown.commands)
      text += ".TP\n" + bold(one.name) + "\n" + lines_of(one.description);
  }
  if (!shown.options.empty()) text += ".SH OPTIONS\n" + options_of(shown.options);
  text += footer_of(shown.footer);
  text +=
      ".SH EXIT STATUS\n0: success; 1: a failure, or damage or a difference that was found; 2: an "
      "error that the user can correct.\n";
  text += ".SH SEE ALSO\n";
  if (command != nullptr) return text + bold(program.name) + "(1)\n";
  for (std::size_t i = 0; i < program.commands.size(); ++i)
    text += bold(program.name + "-" + program.commands[i].name) + "(1)" +
            (i + 1 < program.commands.size() ? ",\n" : "\n");
  return text;
}

}  // namespace sluice::tools
