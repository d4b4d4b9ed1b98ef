// The configuration options shared by every command that runs a configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
class Option;
}  // namespace CLI

namespace sluice::tools {

struct ConfigOptions {
  std::string file;
  std::string text;  // text of a run file, instead of `file`: from a script
  std::string deepspeed;
  std::vector<std::string> overrides;
  std::int64_t world_size = 1;               // number of ranks of the launch
  bool needs_shape_only = false;             // the model's folder need not be on this machine
  const CLI::Option* io_watchdog = nullptr;  // the program's option for the key run.io_watchdog
};

// CONFIG, --deepspeed and --set; `options` must outlive the parsing.
void add_config_options(CLI::App& command, ConfigOptions& options);
// If CONFIG is not an existing run file but names a model (a preset, a folder or OWNER/NAME),
// replaces it by a small run of that model, for plans. Otherwise leaves `options` unchanged and
// returns false. The run has a drive only `with_drive`, for described machines: on this machine its
// path would name no folder.
bool take_model_as_config(ConfigOptions& options, bool with_drive);
// Without CONFIG, for commands that find the run's configuration themselves.
void add_override_options(CLI::App& command, ConfigOptions& options);

// Every override of a key: --set in its order, then --io-watchdog.
std::vector<std::string> overrides_of(const ConfigOptions& options);

// The run's directory if the file is a run's config.json; empty if it is not. A run's directory
// also has a lock, metrics or checkpoints. An error if the directory cannot be searched.
Result<std::string> run_directory_of(const ConfigOptions& options);

// Whether resolving is for work with the model and its data, or only to show and plan a run. Work
// downloads a model of the hub, the rest only its config.json. The training data are read when the
// run's length depends on them (run.epochs). Everything else that the configuration leaves to the
// machine is always looked up.
enum class LookAtData : std::uint8_t {
  kNo,         // the number of steps changes nothing
  kIfItOpens,  // if the data cannot be opened, the length stays open
  kYes,        // an error if the data cannot be opened
};

// Looks up the facts that these sources lack (config::MissingFacts), as far as `data` allows.
Status look_up_facts(LookAtData data, config::Sources& sources);

// The sources, with these facts.
Result<config::Sources> sources_of(const ConfigOptions& options, LookAtData data = LookAtData::kNo);
// A machine can be measured without a configuration; only units need a model.
Result<config::Resolved> resolve_for_probe(const ConfigOptions& options);
Result<config::Resolved> resolve(const ConfigOptions& options, LookAtData data = LookAtData::kNo);

}  // namespace sluice::tools
