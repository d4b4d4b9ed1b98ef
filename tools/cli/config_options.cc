#include "tools/cli/config_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

namespace sluice::tools {

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option(
      "CONFIG", options.file,
      "The run's JSON file; configs/ has some that work. Relative paths in it are from "
      "the working folder");
  add_override_options(command, options);
}

void add_override_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("--deepspeed", options.deepspeed,
                     "A DeepSpeed configuration, as it is: its keys win over the run file's");
  command
      .add_option("--set", options.overrides,
                  "Overrides one key: --set run.steps=100; again for another")
      ->allow_extra_args(false);
}

std::string run_directory_of(const ConfigOptions& options) {
  const std::filesystem::path file(options.file);
  if (file.filename() != "config.json") return "";
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  std::error_code error;
  return std::filesystem::is_directory(folder + "/checkpoints", error) ? folder : "";
}

Result<config::Sources> sources_of(const ConfigOptions& options) {
  if (options.file.empty() && options.deepspeed.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no configuration was given: name a run file (configs/demo.json, say), or a "
                 "DeepSpeed file with --deepspeed");
  }
  config::Sources sources;
  if (!options.file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(sources.run_file, config::read_source(options.file));
  }
  if (!options.deepspeed.empty()) {
    SLUICE_ASSIGN_OR_RETURN(sources.deepspeed, config::read_source(options.deepspeed));
  }
  sources.overrides = options.overrides;
  return sources;
}

Result<config::Resolved> resolve(const ConfigOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const config::Sources sources, sources_of(options));
  return config::resolve(sources);
}

}  // namespace sluice::tools
