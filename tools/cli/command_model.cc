#include "tools/cli/command_model.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "engine/config/key_table.h"
#include "tools/support/value_hints.h"

namespace sluice::tools {
namespace {

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

// The kind of value, from validators' names or the form that CLI::IsMember writes:
// "TEXT:{uint16,uint32}".
void read_validators(CLI::Option& option, OptionModel& model) {
  for (int i = 0;; ++i) {
    const CLI::Validator* validator = nullptr;
    try {
      validator = option.get_validator(i);
    } catch (const CLI::OptionNotFound&) {
      break;
    }
    const std::string name = validator->get_name();
    if (name == kConfigurationKeyHint) model.value = ValueKind::kKey;
    if (name.starts_with(kChoicesHint))
      model.choices = split(name.substr(kChoicesHint.size()), '|');
  }
  const std::string type = option.get_type_name();
  const std::size_t open = type.find(":{");
  const std::size_t close = type.find('}');
  if (model.choices.empty() && open != type.npos && close != type.npos)
    model.choices = split(type.substr(open + 2, close - open - 2), ',');
  if (!model.choices.empty()) model.value = ValueKind::kChoice;
}

bool is_of_a_number(const std::string& type) {
  constexpr std::string_view kTypes[] = {"N", "INT", "UINT", "FLOAT", "PORT", "COMMAND"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

OptionModel option_model(CLI::Option& option) {
  OptionModel model{.description = option.get_description()};
  for (const std::string& name : option.get_snames()) model.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) model.names.push_back("--" + name);
  model.is_positional = model.names.empty();
  if (model.is_positional) model.names.push_back(option.get_name(true, false));
  model.repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll &&
                  option.get_expected_max() > 1;
  const std::string type = option.get_type_name();
  model.value_name = type.substr(0, type.find(':'));
  if (model.value_name == "TEXT" || model.value_name.empty()) model.value_name = "VALUE";
  if (option.get_expected_max() == 0) {
    model.value = option.get_fnames().empty() ? ValueKind::kNone : ValueKind::kInline;
    return model;
  }
  if (is_of_a_number(model.value_name)) model.value = ValueKind::kNumber;
  read_validators(option, model);
  return model;
}

}  // namespace

CommandModel model_of(CLI::App& app) {
  CommandModel model{.name = app.get_name(),
                     .description = app.get_description(),
                     .footer = app.get_footer(),
                     .options = {},
                     .positionals = {},
                     .commands = {}};
  for (CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    OptionModel one = option_model(*option);
    (one.is_positional ? model.positionals : model.options).push_back(std::move(one));
  }
  // Hands its words on to another program, which has the options.
  if (app.get_prefix_command())
    model.positionals.push_back({.names = {"ARGUMENTS"},
                                 .is_positional = true,
                                 .repeats = true,
                                 .value_name = {},
                                 .choices = {},
                                 .description = "Options and files: --help lists them"});
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    if (!command->get_group().empty()) model.commands.push_back(model_of(*command));
  return model;
}

std::vector<KeyChoices> configuration_keys() {
  std::vector<KeyChoices> keys;
  for (const config::Key& key : config::all_keys()) {
    if (key.treatment != config::Treatment::kHonoured) continue;
    KeyChoices one{.path = std::string(key.path), .choices = split(key.choices, '|')};
    if (std::holds_alternative<config::Accessor<bool>>(key.field)) one.choices = {"true", "false"};
    keys.push_back(std::move(one));
  }
  return keys;
}

}  // namespace sluice::tools
