// CommandModel: the commands and options of a program as plain data, read from CLI11's own model of
// them: what shells complete and manual pages say is what the program takes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools {

enum class ValueKind : std::uint8_t {
  kNone,    // a flag
  kInline,  // a flag that may have one behind "=": --resume=NAME
  kChoice,  // one of OptionModel::choices
  kKey,     // KEY=VALUE of a configuration
  kNumber,  // or something else that cannot be completed
  kFile,    // a file or a folder, or a text
};

struct OptionModel {
  std::vector<std::string> names;  // "-o", "--out"; of a positional its name: "CONFIG"
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

// Without what is hidden.
CommandModel model_of(CLI::App& app);

// The keys of a configuration, and what those with choices take.
struct KeyChoices {
  std::string path;
  std::vector<std::string> choices;
};
std::vector<KeyChoices> configuration_keys();

// For `sluice completion`; `shell` is bash, zsh or fish.
std::string completion_script(const CommandModel& program, const std::string& shell);
// For `sluice man`: a page of man(7), of the program or of one of its commands.
std::string manual_page(const CommandModel& program, const CommandModel* command,
                        const std::string& version);

}  // namespace sluice::tools
