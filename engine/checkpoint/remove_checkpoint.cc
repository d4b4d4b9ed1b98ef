#include "engine/checkpoint/remove_checkpoint.h"

#include <algorithm>
#include <vector>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_entry.h"
#include "engine/checkpoint/checkpoint_names.h"

namespace sluice::engine {
namespace {

Status ignore_missing(Status status) {
  if (!status.ok() && status.error().code() == ErrorCode::kNotFound) return {};
  return status;
}

std::string path_in(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

// Removes all of our files except the manifest and the removal mark: those are needed until the
// rest is durably gone.
Status remove_files(aio::FileSystem& files, const std::string& folder,
                    const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == kManifestName || name == kRemovalMarkName || !is_checkpoint_file(name)) continue;
    SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(folder, name))));
  }
  return files.sync_directory(folder);
}

Result<std::string> give_other_name(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(std::string aside, aio::unused_name(files, folder + ".set-aside"));
  SLUICE_RETURN_IF_ERROR(files.rename(folder, aside));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(parent_folder(folder)));
  return aside;
}

// Foreign files are kept. Under a checkpoint's name they would look like an unfinished copy.
Status keep_other_files(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const std::string aside, give_other_name(files, folder));
  log::warning(folder + " had other files in addition to the removed checkpoint; they are now in " +
               aside);
  SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(aside, kRemovalMarkName))));
  return files.sync_directory(aside);
}

}  // namespace

bool is_linked(aio::FileSystem& files, const std::string& folder) {
  const auto kind = files.kind_of(folder);
  return kind.ok() && *kind == aio::PathKind::kLink;
}

Status remove_checkpoint(aio::IoQueue& queue, const std::string& folder) {
  const auto entry = look_at_checkpoint(queue, folder);
  if (!entry) return {};
  if (!entry->complete() && !entry->leftover) return why_not(*entry).with_suffix("; it is kept");
  if (is_linked(queue.backend().files(), folder))
    return Error(ErrorCode::kInvalidArgument,
                 folder + " is a link, and Sluice removes nothing through links; it is kept");
  aio::FileSystem& files = queue.backend().files();
  const auto names = files.list(folder);
  if (!names.ok()) return ignore_missing(names.status());
  if (std::find(names->begin(), names->end(), kManifestName) != names->end())
    SLUICE_RETURN_IF_ERROR(
        files.rename(path_in(folder, kManifestName), path_in(folder, kRemovalMarkName)));
  // Also if it was renamed before: an earlier removal may have failed before this sync.
  SLUICE_RETURN_IF_ERROR(files.sync_directory(folder));
  SLUICE_RETURN_IF_ERROR(remove_files(files, folder, *names));
  const bool all_ours = std::all_of(names->begin(), names->end(), is_checkpoint_file);
  if (!all_ours) return keep_other_files(files, folder);
  SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(folder, kRemovalMarkName))));
  SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(folder)));
  return files.sync_directory(parent_folder(folder));
}

Status set_folder_aside(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const std::string aside, give_other_name(files, folder));
  log::warning(folder + " had the name of a new checkpoint and was renamed to " + aside);
  return {};
}

Status settle_replacement(aio::IoQueue& queue, const std::string& folder) {
  aio::FileSystem& files = queue.backend().files();
  const std::string replacement = folder + std::string(kReplacementSuffix);
  const auto fresh = look_at_checkpoint(queue, replacement);
  if (!fresh) return {};
  if (fresh->leftover) return remove_checkpoint(queue, replacement);
  if (!fresh->complete()) return why_not(*fresh);
  // The writer may have failed before its manifest was durable. It must be before the old
  // checkpoint is removed.
  SLUICE_RETURN_IF_ERROR(files.sync_directory(replacement));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(parent_folder(folder)));
  const auto old = look_at_checkpoint(queue, folder);
  if (old && !old->known()) return why_not(*old);  // a drive does not respond: try again later
  if (old && (old->complete() || old->leftover) && !is_linked(files, folder))
    SLUICE_RETURN_IF_ERROR(remove_checkpoint(queue, folder));
  SLUICE_ASSIGN_OR_RETURN(const bool in_the_way, files.exists(folder));
  if (in_the_way) SLUICE_RETURN_IF_ERROR(set_folder_aside(files, folder));
  SLUICE_RETURN_IF_ERROR(files.rename(replacement, folder));
  return files.sync_directory(parent_folder(folder));
}

}  // namespace sluice::engine
