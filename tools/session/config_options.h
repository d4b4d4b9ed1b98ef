// The options through which every command that runs a configuration is given one.
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
  std::string text;  // of a run file, in place of one: from a script
  std::string deepspeed;
  std::vector<std::string> overrides;
  std::int64_t world_size = 1;               // ranks of the launch
  bool needs_shape_only = false;             // of the model: its folder need not be here
  const CLI::Option* io_watchdog = nullptr;  // the program's, which is the key run.io_watchdog
};

// CONFIG, --deepspeed and --set; `options` must outlive the parsing.
void add_config_options(CLI::App& command, ConfigOptions& options);
// In place of a run file that is not there: a small run of the model that CONFIG names, by a
// preset, by its folder or as OWNER/NAME; else unchanged, and false. With a drive only where one is
// described, since it would be no folder of this machine. For plans.
bool take_model_as_config(ConfigOptions& options, bool with_drive);
// Without CONFIG, for commands that know where the run's is.
void add_override_options(CLI::App& command, ConfigOptions& options);

// Everything that overrides keys: --set in its order, then --io-watchdog.
std::vector<std::string> overrides_of(const ConfigOptions& options);

// The run's directory whose config.json a file is; empty: it belongs to none. A run leaves a lock,
// metrics or checkpoints beside it. An error where that cannot be looked up.
Result<std::string> run_directory_of(const ConfigOptions& options);

// What resolving looks at in the training data, where run.epochs makes the length of the run depend
// on it. Anything else that the configuration leaves to the machine is always looked up.
enum class LookAtData : std::uint8_t {
  kNo,         // the number of steps changes nothing
  kIfItOpens,  // else it stays open
  kYes,        // an error where it cannot be opened
};

// Looks up what resolving these sources asks for (config::Questions), as far as `data` allows.
Status answer_questions(LookAtData data, config::Sources& sources);

// With their answers.
Result<config::Sources> sources_of(const ConfigOptions& options, LookAtData data = LookAtData::kNo);
// Without a configuration a machine can still be measured; only units need a model.
Result<config::Resolved> resolve_for_probe(const ConfigOptions& options);
Result<config::Resolved> resolve(const ConfigOptions& options, LookAtData data = LookAtData::kNo);

}  // namespace sluice::tools
