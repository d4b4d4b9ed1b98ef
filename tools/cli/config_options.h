// The options by which every command that runs a configuration is given one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

struct ConfigOptions {
  std::string file;
  std::string deepspeed;
  std::vector<std::string> overrides;
};

// CONFIG, --deepspeed and --set; `options` must outlive the parsing.
void add_config_options(CLI::App& command, ConfigOptions& options);
// Without CONFIG, for commands that know where the run's is.
void add_override_options(CLI::App& command, ConfigOptions& options);

// The run's directory that a file is the config.json of; empty: it is none's.
std::string run_directory_of(const ConfigOptions& options);

Result<config::Sources> sources_of(const ConfigOptions& options);
Result<config::Resolved> resolve(const ConfigOptions& options);

}  // namespace sluice::tools
