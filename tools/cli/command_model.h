// CommandModel: the commands and options of a program as plain data, read from CLI11's own model,
// so that shell completion and manual pages match what the program accepts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools {

enum class ValueKind : std::uint8_t {
  kNone,    // a flag
  kInline,  // a flag with an optional value: --resume=NAME
  kChoice,  // one of OptionModel::choices
  kKey,     // KEY=VALUE of a configuration
  kNumber,  // or another value without completion
  kFile,    // a file, a folder or a text
};

struct OptionModel {
  std::vector<std::string> names;  // "-o", "--out"; for a positional its name: "CONFIG"
  bool is_positional = false;
  bool repeats = false;
  ValueKind value = ValueKind::kFile;
  std::string value_name;  // "N", "FILE"
  std::vector<std::string> choices;
  std::string description;
};

struct CommandModel {
  std::string name;  // "train"
  std::string description;
  std::string footer;
  std::vector<OptionModel> options;
  std::vector<OptionModel> positionals;
  std::vector<CommandModel> commands;
};

// Leaves out hidden commands and options.
CommandModel model_of(CLI::App& app);

// A configuration key and the choices it accepts, if it has any.
struct KeyChoices {
  std::string path;
  std::vector<std::string> choices;
};
std::vector<KeyChoices> configuration_keys();

// For `sluice completion`; `shell` is bash, zsh or fish.
std::string completion_script(const CommandModel& program, const std::string& shell);
// For `sluice man`: a man(7) page of the program, or of `command` if it is not null.
std::string manual_page(const CommandModel& program, const CommandModel* command,
                        const std::string& version);

}  // namespace sluice::tools
