#include "tools/session/checkpoint_argument.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/exchange/adapter_weights.h"

namespace sluice::tools {
namespace {

std::string without_last_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

CheckpointArgument argument_of(const std::string& checkpoint) {
  return {.path = checkpoint, .run_directory = engine::run_directory_of(checkpoint)};
}

Result<bool> is_checkpoint(aio::FileSystem& files, const std::string& directory) {
  if (engine::parse_folder_name(engine::last_name(directory))) return true;
  return files.exists(directory + "/" + std::string(engine::kManifestName));
}

// The newest checkpoint if it is complete; otherwise an error that says how to name an older one.
Result<std::optional<engine::CheckpointEntry>> newest_of(
    const engine::CheckpointFolder& checkpoints) {
  SLUICE_ASSIGN_OR_RETURN(auto newest, checkpoints.newest_entry());
  if (!newest || newest->complete()) return newest;
  SLUICE_ASSIGN_OR_RETURN(const auto before, checkpoints.before(newest->step));
  return engine::why_not(*newest).with_suffix(before
                                                  ? "; the previous checkpoint is " + before->name +
                                                        ": give --checkpoint " + before->name
                                                  : "; there is no older complete checkpoint");
}

// An error if a folder without checkpoints is not a run's.
Status check_is_run(aio::FileSystem& files, const std::string& folder) {
  const auto names = files.list(folder);
  if (!names.ok()) return {};
  const auto has = [&](std::string_view name) {
    return std::find(names->begin(), names->end(), name) != names->end();
  };
  if (has(engine::kCheckpointsFolder)) return {};
  if (has(engine::kPeftConfigName))
    return Error(ErrorCode::kNotFound,
                 folder +
                     " contains an adapter, not a run: use it with sluice eval --adapter, or "
                     "continue to train it with recipe.lora.adapter");
  if (has("model.safetensors") || has("model.safetensors.index.json"))
    return Error(ErrorCode::kNotFound,
                 folder + " is the folder of a model, not of a run: sluice import " + folder +
                     " RUN converts it");
  if (!has("config.json"))
    return Error(ErrorCode::kNotFound, folder +
                                           " is not a run's folder (sluice train --out): it has "
                                           "neither checkpoints nor config.json");
  return {};
}

}  // namespace

Result<CheckpointArgument> find_checkpoint(aio::IoQueue& queue, const std::string& directory,
                                           const std::string& name) {
  const std::string clean = without_last_slash(directory);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(clean));
  if (!there && name.empty() && engine::last_name(clean) == engine::kBestName) {  // RUN/best
    const std::string run = engine::parent_folder(clean);
    SLUICE_ASSIGN_OR_RETURN(const bool is_run, queue.backend().files().exists(run));
    if (is_run) return find_checkpoint(queue, run, std::string(engine::kBestName));
  }
  if (!there) {
    return Error(ErrorCode::kNotFound, "there is no " + clean +
                                           ": name a run's folder (sluice train --out), or "
                                           "the folder of one of its checkpoints");
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(clean, ignored))
    return Error(ErrorCode::kInvalidArgument,
                 clean + " is a file: name a run's folder (sluice train --out)");
  SLUICE_ASSIGN_OR_RETURN(const bool is_one, is_checkpoint(queue.backend().files(), clean));
  if (is_one) {
    if (!name.empty())
      return Error(ErrorCode::kInvalidArgument,
                   clean + " is one checkpoint, so --checkpoint " + name +
                       " has no effect: leave it out, or name the run's folder");
    return argument_of(clean);
  }
  const engine::CheckpointFolder checkpoints(queue,
                                             clean + "/" + std::string(engine::kCheckpointsFolder));
  if (!name.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto entry, checkpoints.find(name));
    return argument_of(entry.path);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto newest, newest_of(checkpoints));
  if (newest) return argument_of(newest->path);
  SLUICE_RETURN_IF_ERROR(check_is_run(queue.backend().files(), clean));
  return Error(ErrorCode::kNotFound, "there is no checkpoint in " + checkpoints.path() +
                                         " yet: sluice train writes them at its end, and as "
                                         "run.checkpoint_every and run.checkpoint_minutes say");
}

void add_copy_options(CLI::App& command, std::string& from, std::string& to,
                      std::string& checkpoint) {
  command.add_option("DIR", from, "A run's folder, or the folder of one checkpoint")->required();
  command.add_option("OUT", to, "Folder to create; it must not exist, or be empty")->required();
  command.add_option(
      "--checkpoint", checkpoint,
      "Checkpoint in a run's folder: step-000000012, 12 or best; default: the newest");
}

}  // namespace sluice::tools
