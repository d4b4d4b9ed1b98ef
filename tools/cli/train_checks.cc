#include "tools/cli/train_checks.h"

#include <filesystem>

#include "engine/config/changes.h"
#include "engine/config/resolve.h"
#include "engine/config/stored_config.h"
#include "engine/train/run_checkpoints.h"
#include "tools/support/output_file.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".safetensors";

// A run's checkpoints beside the run file, of another run than this one.
bool lies_in_another_run(const std::string& config_file, const std::string& directory) {
  std::error_code error;
  const fs::path folder = fs::absolute(config_file, error).parent_path();
  return fs::is_directory(engine::RunCheckpoints::folder_of(folder.string()), error) &&
         !fs::equivalent(folder, directory, error);
}

}  // namespace

Status check_weights_output(const WantedWeights& wanted, const config::Config& config) {
  if (wanted.path.empty()) return {};
  if (!wanted.path.ends_with(kEnding))
    return Error(ErrorCode::kInvalidArgument,
                 "--save-weights " + wanted.path + ": the name must end in " + kEnding);
  return check_output_file({.option = "--save-weights",
                            .path = wanted.path,
                            .replaces = wanted.replaces,
                            .made_folder = config.run.dir});
}

Status check_init_from(const config::Config& config) {
  const std::string& path = config.model.init_from;
  std::error_code error;
  if (path.empty()) return {};
  const auto status = fs::status(path, error);
  if (!fs::exists(status))
    return Error(ErrorCode::kNotFound, "model.init_from: there is no file or folder " + path);
  if (fs::is_regular_file(status) || fs::is_directory(status)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "model.init_from: " + path + " is neither a regular file nor a folder");
}

Status check_traced_steps(const engine::TraceLog::Options& trace, std::int64_t done,
                          std::int64_t steps) {
  if (done >= steps || (trace.first_step > done && trace.last_step <= steps)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--trace " + std::to_string(trace.first_step) + ":" +
                   std::to_string(trace.last_step) + ": the steps that will be run are " +
                   std::to_string(done + 1) + " to " + std::to_string(steps));
}

std::string weights_text(const config::Config& config,
                         const std::optional<engine::CheckpointEntry>& checkpoint,
                         const std::string& config_file) {
  if (checkpoint)
    return "weights: from " + checkpoint->path + ", with their optimizer state, after step " +
           std::to_string(checkpoint->step) + "\n";
  if (!config.model.init_from.empty())
    return "weights: from " + config.model.init_from + " (model.init_from)\n";
  std::string text = "weights: random, drawn with seed " + std::to_string(config.model.init_seed) +
                     " (model.init_seed)\n";
  if (!config_file.empty() && lies_in_another_run(config_file, config.run.dir)) {
    const std::string folder = fs::path(config_file).parent_path().string();
    text += "the weights of the run in " + (folder.empty() ? "." : folder) +
            " are not used: --resume=" + (folder.empty() ? "" : folder + "/") +
            "checkpoints/NAME begins with those of a checkpoint (sluice ls lists them)\n";
  }
  return text;
}

std::string changes_text(const engine::CheckpointState& stored, const config::Config& config) {
  if (stored.run.imported()) return "";
  config::Sources sources;
  sources.run_file = config::Source{.name = "the checkpoint", .text = stored.configuration};
  const auto before = config::resolve(sources);
  if (!before.ok())
    return "what has changed since the checkpoint is not known: " + before.error().message() + "\n";
  // A checkpoint has absolute paths.
  std::error_code error;
  const auto now = config::stored_config(config, fs::current_path(error).string());
  if (!now.ok())
    return "what has changed since the checkpoint is not known: " + now.error().message() + "\n";
  std::string text;
  for (const config::KeyChange& change : config::changed_keys(before->config, *now)) {
    // Where weights come from at a beginning means nothing to a run that goes on.
    if (!config::decides_results(change.path) || change.path.starts_with("model.init")) continue;
    text += "changed since the checkpoint: " + config::to_text(change) + "\n";
  }
  return text;
}

}  // namespace sluice::tools
