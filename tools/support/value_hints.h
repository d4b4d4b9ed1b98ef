// CLI11 validators that accept everything. Their names describe an option's values, for output
// generated from the program's own model (tools/cli/command_model.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace sluice::tools {

inline constexpr std::string_view kChoicesHint = "choices:";
inline constexpr std::string_view kConfigurationKeyHint = "configuration key";

inline CLI::Validator value_hint(const std::string& name) {
  CLI::Validator validator([](std::string& /*text*/) { return std::string(); }, "");
  return validator.name(name);
}
// `list`: the choices, "fp32|bf16|fp16".
inline CLI::Validator choices(const std::string& list) {
  return value_hint(std::string(kChoicesHint) + list);
}
// KEY=VALUE of a configuration.
inline CLI::Validator configuration_key() { return value_hint(std::string(kConfigurationKeyHint)); }

}  // namespace sluice::tools
