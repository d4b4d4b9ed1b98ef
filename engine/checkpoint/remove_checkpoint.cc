#include "engine/checkpoint/remove_checkpoint.h"

#include <algorithm>
#include <vector>

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

}  // namespace

Status remove_checkpoint(aio::FileSystem& files, const std::string& folder) {
  const auto names = files.list(folder);
  if (!names.ok()) return ignore_missing(names.status());
  SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(folder, kManifestName))));
  // Also when it is gone already: an earlier removal may have failed before this.
  SLUICE_RETURN_IF_ERROR(files.sync_directory(folder));
  bool all_ours = true;
  for (const std::string& name : *names) {
    if (name == kManifestName) continue;
    if (!is_checkpoint_file(name)) {
      all_ours = false;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(folder, name))));
  }
  if (!all_ours) return files.sync_directory(folder);
  SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(folder)));
  return files.sync_directory(parent_folder(folder));
}

Status settle_replacement(aio::FileSystem& files, const std::string& folder) {
  const std::string replacement = folder + std::string(kReplacementSuffix);
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(replacement));
  if (!there) return {};
  SLUICE_ASSIGN_OR_RETURN(const bool whole, files.exists(path_in(replacement, kManifestName)));
  if (!whole) return remove_checkpoint(files, replacement);
  // A manifest that its writer was not told to be durable must be so before the old one goes.
  SLUICE_RETURN_IF_ERROR(files.sync_directory(replacement));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(parent_folder(folder)));
  SLUICE_RETURN_IF_ERROR(remove_checkpoint(files, folder));
  SLUICE_RETURN_IF_ERROR(files.rename(replacement, folder));
  return files.sync_directory(parent_folder(folder));
}

}  // namespace sluice::engine
