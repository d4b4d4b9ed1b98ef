#include "engine/checkpoint/checkpoint_entry.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"

namespace sluice::engine {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Saves write into folders with another name, and removals begin by renaming the manifest. A folder
// that has neither is not ours; nor is one with only foreign files, which is how rsync begins.
void judge_without_manifest(const std::vector<std::string>& names, bool replacement,
                            CheckpointEntry& entry) {
  const bool has_ours = std::any_of(names.begin(), names.end(), is_checkpoint_file);
  entry.leftover = names.empty() || (has_ours && replacement) || contains(names, kRemovalMarkName);
  if (entry.leftover)
    entry.status =
        Error(ErrorCode::kNotFound, entry.path + " was left by an interrupted save or removal");
  else if (!has_ours)
    entry.status =
        Error(ErrorCode::kCorrupt,
              "none of a checkpoint's files is in " + entry.path +
                  ", but other files are: it is still being copied, or is not a checkpoint");
  else
    entry.status = Error(ErrorCode::kCorrupt,
                         "there is no " + entry.path + "/" + std::string(kManifestName) +
                             ": the folder is still being copied, or the file was removed");
}

Status judge_manifest(aio::IoQueue& queue, std::optional<std::int64_t> named_step,
                      CheckpointEntry& entry) {
  const auto manifest = read_checkpoint_manifest(queue, entry.path);
  if (!manifest.ok() && manifest.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kIo, entry.path + "/" + std::string(kManifestName) +
                                     " is listed in its folder but cannot be opened");
  if (!manifest.ok()) return manifest.error();
  entry.bytes = manifest->total_bytes();
  entry.loss = manifest->state.loss;
  entry.validation_loss = manifest->state.validation_loss;
  if (manifest->records) entry.store_paths = manifest->records->store.paths;
  const std::int64_t step = manifest->state.position.global_step;
  if (named_step && *named_step != step)
    return Error(ErrorCode::kCorrupt, entry.path + " contains the checkpoint of step " +
                                          std::to_string(step) + ": its folder was renamed");
  entry.step = step;
  return check_stored_files(queue, *manifest, entry.path);
}

}  // namespace

Status check_stored_files(aio::IoQueue& queue, const CheckpointManifest& manifest,
                          const std::string& folder) {
  for (const StoredFile& stored : manifest.files) {
    if (stored.name == kWeightIndexName) continue;  // for other programs; loading does not need it
    const std::string path = folder + "/" + stored.name;
    const auto file = queue.backend().files().open(path, {});
    if (!file.ok()) {
      if (file.error().code() != ErrorCode::kNotFound) return file.error();
      return Error(ErrorCode::kCorrupt, path + " is missing");
    }
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t bytes, (*file)->size_bytes());
    if (bytes != stored.bytes)
      return Error(ErrorCode::kCorrupt, path + " has " + std::to_string(bytes) +
                                            " bytes instead of " + std::to_string(stored.bytes));
  }
  if (!manifest.records) return {};
  return open_records(queue, *manifest.records).status();
}

std::optional<CheckpointEntry> look_at_checkpoint(aio::IoQueue& queue, const std::string& path) {
  CheckpointEntry entry;
  entry.name = last_name(path);
  entry.path = path;
  const auto parsed = parse_folder_name(entry.name);
  if (parsed) entry.step = parsed->step;
  const auto names = queue.backend().files().list(path);
  if (!names.ok()) {
    if (names.error().code() == ErrorCode::kNotFound || names.error().error_number() == ENOTDIR)
      return std::nullopt;
    entry.status = names.error();
    return entry;
  }
  if (!parsed && !names->empty() && std::none_of(names->begin(), names->end(), is_checkpoint_file))
    return std::nullopt;
  if (contains(*names, kManifestName))
    entry.status =
        judge_manifest(queue, parsed ? std::optional(parsed->step) : std::nullopt, entry);
  else
    judge_without_manifest(*names, entry.name.ends_with(kReplacementSuffix), entry);
  if (entry.status.ok()) return entry;
  // A run may have renamed or removed it since it was listed.
  const auto there = queue.backend().files().exists(path);
  if (there.ok() && !*there) return std::nullopt;
  return entry;
}

Error why_not(const CheckpointEntry& entry) {
  const char* const what = [&] {
    switch (entry.status.error().code()) {
      case ErrorCode::kCorrupt:
        return " is damaged";
      case ErrorCode::kNewerVersion:
        return " was written by a newer version of Sluice";
      case ErrorCode::kNotFound:
        return " was never finished";
      default:
        return " cannot be read";
    }
  }();
  return Error(entry.status.error()).with_context("checkpoint " + entry.name + what);
}

}  // namespace sluice::engine
