#include "swap/store_inventory.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "aio/small_file.h"
#include "aio/units.h"
#include "swap/store_files.h"

namespace sluice::swap {
namespace {

using aio::IoQueue;

Result<StoreManifest> read_member(IoQueue& queue, const std::string& folder) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder));
  if (!there) return Error(ErrorCode::kNotFound, "there is no state store in " + folder);
  SLUICE_ASSIGN_OR_RETURN(const bool made, files.exists(manifest_path(folder)));
  if (!made) {
    return Error(ErrorCode::kCorrupt,
                 folder + " has no store.json: its run was killed while it was being made");
  }
  return read_manifest(queue, folder);
}

bool of_one_store(const StoreLayout& a, const StoreLayout& b) {
  return to_text(a, 0) == to_text(b, 0);
}

// Removes the folder and those of the same store on other paths, after locking them and checking
// that all are still leftovers.
Result<std::vector<FoundRun>> remove_leftover(IoQueue& queue, const FoundRun& found) {
  std::vector<std::string> paths = {found.path};
  const auto manifest = read_manifest(queue, found.directory);
  if (manifest.ok()) {
    paths = manifest->layout.options().paths;
    paths[manifest->member] = found.path;
  } else if (manifest.error().code() != ErrorCode::kNotFound) {
    return manifest.error();
  }
  StoreDirectories held;
  std::vector<FoundRun> members;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(auto directory, StoreDirectory::hold(queue, path, found.run));
    held.push_back(std::move(directory));
  }
  for (const auto& directory : held) {
    SLUICE_ASSIGN_OR_RETURN(FoundRun member, directory->look());
    if (member.condition != StoreCondition::kLeftover)
      return Error(ErrorCode::kBusy, describe(member));
    members.push_back(std::move(member));
  }
  SLUICE_RETURN_IF_ERROR(remove_store(queue, held));
  return members;
}

}  // namespace

std::string describe(const RunOwner& owner) {
  return "process " + std::to_string(owner.pid) + " on " + owner.host + " (started " +
         owner.started_utc + ")";
}

std::string describe(const FoundRun& found) {
  const std::string owner = found.owner ? describe(*found.owner) : "an unknown process";
  std::string what = found.directory + " (" + format_bytes(found.bytes) + ") ";
  switch (found.condition) {
    case StoreCondition::kInUse:
      return what + "is in use by " + owner;
    case StoreCondition::kLeftover:
      return what + "was left half-written by " + owner + ", which was killed";
    case StoreCondition::kElsewhere:
      return what + "is in use by, or was left by, " + owner +
             ", whose lock may not reach this machine or this mount";
    case StoreCondition::kUnclaimed:
      return what + "has no store in it, and does not say whose it is";
    case StoreCondition::kUnknown:
      return what + "of " + owner + " is left alone, because what it holds is not known: " +
             (found.problem.ok() ? "" : found.problem.error().message());
  }
  return what;
}

Status remove_store(IoQueue& queue, const StoreDirectories& directories) {
  aio::FileSystem& files = queue.backend().files();
  for (const auto& directory : directories) SLUICE_RETURN_IF_ERROR(directory->refuse_removal());
  for (const auto& path_of : {closed_mark_path, manifest_path})
    for (const auto& directory : directories)
      SLUICE_RETURN_IF_ERROR(aio::remove_durably(files, path_of(directory->path())));
  Status first_error;
  for (const auto& directory : directories) {
    Status removed = directory->remove_all();
    if (!removed.ok() && first_error.ok()) first_error = std::move(removed);
  }
  return first_error;
}

Result<Sweep> remove_leftovers(IoQueue& queue, const std::vector<std::string>& paths,
                               const std::function<bool(const FoundRun&)>& which) {
  // All are classified before any is removed, because the parts of a store are evidence for each
  // other.
  std::vector<FoundRun> all;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<FoundRun> found, find_runs(queue, path));
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  Sweep sweep;
  std::set<std::string> gone;
  for (FoundRun& found : all) {
    if (gone.count(found.directory) > 0) continue;
    if (found.condition != StoreCondition::kLeftover || (which && !which(found))) {
      sweep.kept.push_back(std::move(found));
      continue;
    }
    auto removed = remove_leftover(queue, found);
    if (removed.ok()) {
      for (FoundRun& member : *removed) {
        gone.insert(member.directory);
        sweep.removed.push_back(std::move(member));
      }
    } else if (removed.error().code() != ErrorCode::kNotFound) {  // or already removed by others
      found.condition = removed.error().code() == ErrorCode::kBusy ? StoreCondition::kInUse
                                                                   : StoreCondition::kUnknown;
      found.problem = removed.status();
      sweep.kept.push_back(std::move(found));
    }
  }
  return sweep;
}

Result<std::vector<FoundRun>> remove_run(IoQueue& queue, const std::vector<std::string>& paths,
                                         const std::string& run) {
  StoreDirectories held;
  std::vector<FoundRun> found;
  for (const std::string& path : paths) {
    auto directory = StoreDirectory::hold(queue, path, run);
    if (!directory.ok() && directory.error().code() == ErrorCode::kNotFound) continue;
    if (!directory.ok()) return std::move(directory).error();
    SLUICE_ASSIGN_OR_RETURN(FoundRun one, (*directory)->look());
    found.push_back(std::move(one));
    held.push_back(std::move(*directory));
  }
  if (held.empty())
    return Error(ErrorCode::kNotFound,
                 "there is no state store in " + folder_of(paths.front(), run));
  SLUICE_RETURN_IF_ERROR(remove_store(queue, held));
  return found;
}

Result<FoundStore> find_store(IoQueue& queue, const std::vector<std::string>& paths,
                              const std::string& run) {
  if (paths.empty()) return Error(ErrorCode::kInvalidArgument, "no path to look for a store on");
  std::vector<std::string> ordered(paths.size());
  std::optional<StoreLayout> layout;
  for (const std::string& path : paths) {
    const std::string folder = folder_of(path, run);
    SLUICE_ASSIGN_OR_RETURN(StoreManifest member, read_member(queue, folder));
    const StoreLayoutOptions& store = member.layout.options();
    if (store.run != run)
      return Error(ErrorCode::kCorrupt, folder + ": it is the store of run " + store.run);
    if (store.paths.size() != paths.size()) {
      return Error(ErrorCode::kInvalidArgument,
                   folder + " is part of a store of " + std::to_string(store.paths.size()) +
                       " paths, and " + std::to_string(paths.size()) + " were given");
    }
    std::string& place = ordered[member.member];
    if (!place.empty() || (layout && !of_one_store(*layout, member.layout))) {
      return Error(ErrorCode::kCorrupt, folder + " does not belong to the same store as " +
                                            folder_of(paths.front(), run));
    }
    place = path;
    if (!layout) layout = std::move(member.layout);
  }
  return FoundStore{std::move(ordered), std::move(*layout)};
}

}  // namespace sluice::swap
