#include <algorithm>
#include <string_view>

#include "aio/text.h"
#include "tools/cli/command_model.h"

namespace sluice::tools {
namespace {

constexpr const char* kHead = "# Made by: sluice completion ";

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// Quoted as one word of a shell.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// The text's first clause, on one line.
std::string short_text(const std::string& text) {
  constexpr std::size_t kMost = 72;
  std::string line = text.substr(0, text.find_first_of(";\n"));
  if (line.size() > kMost) {
    line.resize(line.rfind(' ', kMost));
    line += " ...";
  }
  return line;
}

std::vector<std::string> names_of(const std::vector<CommandModel>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CommandModel& command : commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> all_names(const std::vector<OptionModel>& options) {
  std::vector<std::string> names;
  for (const OptionModel& option : options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// ---- bash

// The shell code that completes the value of an option or a positional.
std::string bash_action(const OptionModel& option) {
  switch (option.value) {
    case ValueKind::kChoice:
      return "choices=" + quoted(joined(option.choices));
    case ValueKind::kKey:
      return "kind=key";
    case ValueKind::kNumber:
      return "kind=number";
    default:
      return "kind=file";
  }
}

std::string bash_values(const CommandModel& command) {
  std::string text;
  for (const OptionModel& option : command.options) {
    if (option.value == ValueKind::kNone || option.value == ValueKind::kInline) continue;
    text += "        " + joined(option.names, "|") + ") " + bash_action(option) + " ;;\n";
  }
  return text.empty() ? "" : "      case \"$option\" in\n" + text + "      esac\n";
}

std::string bash_command(const CommandModel& command, const std::string& pattern) {
  std::string text = "    " + pattern +
                     ")\n      options=" + quoted(joined(all_names(command.options))) + "\n" +
                     bash_values(command);
  if (!command.commands.empty()) {
    text += "      positional=" + quoted(joined(names_of(command.commands))) + "\n";
  } else if (!command.positionals.empty() &&
             command.positionals.front().value == ValueKind::kChoice) {
    text += "      positional=" + quoted(joined(command.positionals.front().choices)) + "\n";
  }
  return text + "      ;;\n";
}

constexpr std::string_view kBash = R"(
_sluice() {
  local current="${COMP_WORDS[COMP_CWORD]}" before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  local command='' option='' key='' options='' positional='' kind='' choices='' i
  COMPREPLY=()
  # "=" is a word of its own: --dtype=bf16, --set run.device=cpu
  if [[ $current == = ]]; then
    before+=(=)
    current=''
  fi
  local count=${#before[@]}
  if ((count >= 2)) && [[ ${before[count-1]} == = ]]; then
    option="${before[count-2]}"
    if [[ $option != -* ]]; then
      key="$option"
      option=''
      ((count >= 3)) && option="${before[count-3]}"
      [[ $option == = ]] && ((count >= 4)) && option="${before[count-4]}"
    fi
  elif ((count >= 1)); then
    option="${before[count-1]}"
  fi
  for ((i = 0; i < count; ++i)); do
    case "${before[i]}" in
      @VALUED@) ((++i)) ;;
      =) ((++i)) ;;
      @COMMANDS@)
        command="${before[i]}"
        break
        ;;
    esac
  done
  case "$command" in
@CASES@  esac
  if [[ $kind == key ]]; then
    if [[ -n $key ]]; then
      case "$key" in
@KEYCHOICES@      esac
    else
      compopt -o nospace 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -S = -W "$_sluice_keys" -- "$current")
      return
    fi
  fi
  if [[ -n $choices ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  elif [[ $kind == number || $kind == key ]]; then
    return
  elif [[ -z $kind && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -z $kind && -n $positional ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$positional" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}

complete -F _sluice sluice
)";

std::string bash_script(const CommandModel& program) {
  std::vector<std::string> keys;
  std::string of_keys;
  for (const KeyChoices& key : configuration_keys()) {
    keys.push_back(key.path);
    if (!key.choices.empty())
      of_keys += "        " + key.path + ") choices=" + quoted(joined(key.choices)) + " ;;\n";
  }
  std::vector<std::string> valued;
  for (const OptionModel& option : program.options)
    if (option.value != ValueKind::kNone)
      valued.insert(valued.end(), option.names.begin(), option.names.end());
  std::string cases = bash_command(program, "''");
  for (const CommandModel& command : program.commands) cases += bash_command(command, command.name);
  std::string text(kBash);
  text = replaced(text, "@VALUED@", joined(valued, "|"));
  text = replaced(text, "@COMMANDS@", joined(names_of(program.commands), "|"));
  text = replaced(text, "@CASES@", cases);
  text = replaced(text, "@KEYCHOICES@", of_keys);
  return kHead + std::string("bash\n_sluice_keys=") + quoted(joined(keys)) + "\n" + text;
}

// ---- zsh

std::string zsh_text(const std::string& text) {
  std::string safe = replaced(short_text(text), "\\", "\\\\");
  for (const char* letter : {"[", "]", ":"})
    safe = replaced(safe, letter, std::string("\\") + letter);
  return safe;
}

std::string zsh_value(const OptionModel& option) {
  std::string name = ":" + zsh_text(option.value_name) + ":";
  switch (option.value) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kInline:
      return ":" + name;
    case ValueKind::kChoice:
      return name + "(" + joined(option.choices) + ")";
    case ValueKind::kKey:
      return name + "_sluice_key";
    case ValueKind::kNumber:
      return name;
    case ValueKind::kFile:
      return name + "_files";
  }
  return "";
}

std::string zsh_specs(const CommandModel& command) {
  std::string text;
  for (const OptionModel& option : command.options) {
    for (const std::string& name : option.names) {
      std::string spec = option.repeats ? "*" : "";
      spec += name;
      if (option.value == ValueKind::kInline)
        spec += "=-";
      else if (option.value != ValueKind::kNone && name.starts_with("--"))
        spec += '=';
      text += " \\\n        " +
              quoted(spec + "[" + zsh_text(option.description) + "]" + zsh_value(option));
    }
  }
  for (const OptionModel& positional : command.positionals) {
    const bool is_choice = positional.value == ValueKind::kChoice;
    text += " \\\n        " +
            quoted((positional.repeats ? "*:" : ":") + zsh_text(positional.names.front()) + ":" +
                   (is_choice ? "(" + joined(positional.choices) + ")" : "_files"));
  }
  return text;
}

std::string zsh_script(const CommandModel& program) {
  std::string text = "#compdef sluice\n" + std::string(kHead) + "zsh\n\n_sluice_key() {\n";
  std::vector<std::string> keys;
  text += "  if compset -P '*='; then\n    case ${IPREFIX%=} in\n";
  for (const KeyChoices& key : configuration_keys()) {
    keys.push_back(key.path);
    if (!key.choices.empty())
      text += "      *" + key.path + ") compadd " + joined(key.choices) + " ;;\n";
  }
  text += "    esac\n  else\n    compadd -S = -- " + joined(keys) + "\n  fi\n}\n\n";
  text += "_sluice() {\n  local context state line\n  typeset -A opt_args\n  _arguments -C";
  text += zsh_specs(program);
  text += " \\\n        '1: :->command' \\\n        '*:: :->rest'\n  case $state in\n";
  text += "    command)\n      local -a commands\n      commands=(\n";
  for (const CommandModel& command : program.commands)
    text += "        " + quoted(command.name + ":" + zsh_text(command.description)) + "\n";
  text +=
      "      )\n      _describe command commands\n      ;;\n    rest)\n      case $words[1] in\n";
  for (const CommandModel& command : program.commands)
    text += "      " + command.name + ")\n      _arguments" + zsh_specs(command) + "\n      ;;\n";
  text += "      esac\n      ;;\n  esac\n}\n\n";
  // In a file of $fpath this is the function's body; sourced by a shell it registers the function.
  return text +
         "if [[ $funcstack[1] == _sluice ]]; then\n  _sluice \"$@\"\nelse\n"
         "  compdef _sluice sluice\nfi\n";
}

// ---- fish

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_options(const std::vector<OptionModel>& options, const std::string& condition) {
  std::string text;
  for (const OptionModel& option : options) {
    text += "complete -c sluice -n " + fish_quoted(condition);
    for (const std::string& name : option.names)
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (option.value == ValueKind::kChoice) text += " -x -a " + fish_quoted(joined(option.choices));
    if (option.value == ValueKind::kKey) text += " -x -a '(__sluice_keys)'";
    if (option.value == ValueKind::kNumber) text += " -x";
    if (option.value == ValueKind::kFile) text += " -r -F";
    text += " -d " + fish_quoted(short_text(option.description)) + "\n";
  }
  return text;
}

std::string fish_script(const CommandModel& program) {
  std::string text = std::string(kHead) + "fish\n\nfunction __sluice_keys\n  printf '%s\\n'";
  for (const KeyChoices& key : configuration_keys()) {
    if (key.choices.empty()) text += " " + key.path + "=";
    for (const std::string& choice : key.choices) text += " " + key.path + "=" + choice;
  }
  text += "\nend\n\ncomplete -c sluice -f\n";
  const std::string none = "not __fish_seen_subcommand_from " + joined(names_of(program.commands));
  text += fish_options(program.options, none);
  for (const CommandModel& command : program.commands)
    text += "complete -c sluice -n " + fish_quoted(none) + " -a " + command.name + " -d " +
            fish_quoted(short_text(command.description)) + "\n";
  for (const CommandModel& command : program.commands) {
    const std::string seen = "__fish_seen_subcommand_from " + command.name;
    text += fish_options(command.options, seen);
    for (const OptionModel& positional : command.positionals) {
      text += "complete -c sluice -n " + fish_quoted(seen);
      text += positional.value == ValueKind::kChoice
                  ? " -a " + fish_quoted(joined(positional.choices)) + "\n"
                  : " -F\n";
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const CommandModel& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  return shell == "zsh" ? zsh_script(program) : fish_script(program);
}

}  // namespace sluice::tools
