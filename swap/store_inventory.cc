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

struct Member {
  StoreManifest manifest;
  std::optional<ClosedMark> mark;
};

Result<Member> read_member(IoQueue& queue, const std::string& folder) {
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder));
  if (!there) return Error(ErrorCode::kNotFound, "there is no state store in " + folder);
  SLUICE_ASSIGN_OR_RETURN(const bool made, files.exists(manifest_path(folder)));
  if (!made) {
    return Error(ErrorCode::kCorrupt,
                 folder + " has no store.json: its run was killed while it was being made");
  }
  SLUICE_ASSIGN_OR_RETURN(StoreManifest manifest, read_manifest(queue, folder));
  SLUICE_ASSIGN_OR_RETURN(std::optional<ClosedMark> mark, read_mark(queue, folder));
  return Member{std::move(manifest), std::move(mark)};
}

bool of_one_store(const Member& a, const Member& b) {
  return to_text(a.manifest.layout, 0) == to_text(b.manifest.layout, 0);
}

Status check_member(const Member& member, const std::string& run) {
  const StoreLayout& layout = member.manifest.layout;
  if (layout.options().run != run)
    return Error(ErrorCode::kCorrupt, "it is the store of run " + layout.options().run);
  if (member.mark && (member.mark->store_id != layout.options().store_id ||
                      member.mark->generations.size() != layout.records().size()))
    return Error(ErrorCode::kCorrupt, "its closed.json is that of another store");
  return {};
}

// One mark is enough: the first is written when all records are durable, and the last is removed
// before a record is written again.
std::optional<ClosedMark> common_mark(std::vector<std::optional<ClosedMark>> marks) {
  std::optional<ClosedMark> common;
  for (std::optional<ClosedMark>& mark : marks) {
    if (!mark) continue;
    if (common && to_text(*mark) != to_text(*common)) return std::nullopt;
    common = std::move(mark);
  }
  return common;
}

// The folder and those of the same store on other paths, locked; all of them are still leftovers.
Result<std::vector<FoundRun>> remove_leftover(IoQueue& queue, const FoundRun& found) {
  std::vector<std::string> paths = {found.path};
  const auto manifest = read_manifest(queue, found.directory);
  if (manifest.ok()) {
    paths = manifest->layout.options().paths;
    paths[manifest->member] = found.path;
  } else if (manifest.error().code() != ErrorCode::kNotFound) {
    return manifest.error();
  }
  RunDirectories held;
  std::vector<FoundRun> members;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(auto directory, RunDirectory::hold(queue, path, found.run));
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
    case StoreCondition::kWhole:
      return what + "is a whole store, closed by " + owner;
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

Status remove_store(IoQueue& queue, const RunDirectories& directories) {
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
  // All are judged before any is removed: the parts of a store are evidence for each other.
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
    } else if (removed.error().code() != ErrorCode::kNotFound) {  // others may have removed it
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
  RunDirectories held;
  std::vector<FoundRun> found;
  for (const std::string& path : paths) {
    auto directory = RunDirectory::hold(queue, path, run);
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

Result<AnyStore> find_any(IoQueue& queue, const std::vector<std::string>& paths,
                          const std::string& run) {
  if (paths.empty()) return Error(ErrorCode::kInvalidArgument, "no path to look for a store on");
  std::vector<std::string> ordered(paths.size());
  std::vector<std::optional<ClosedMark>> marks;
  std::optional<Member> first;
  for (const std::string& path : paths) {
    const std::string folder = folder_of(path, run);
    SLUICE_ASSIGN_OR_RETURN(Member member, read_member(queue, folder));
    const Status right = check_member(member, run);
    if (!right.ok()) return Error(right.error()).with_context(folder);
    const std::size_t count = member.manifest.layout.options().paths.size();
    if (count != paths.size()) {
      return Error(ErrorCode::kInvalidArgument, folder + " is part of a store of " +
                                                    std::to_string(count) + " paths, and " +
                                                    std::to_string(paths.size()) + " were given");
    }
    std::string& place = ordered[member.manifest.member];
    if (!place.empty() || (first && !of_one_store(*first, member))) {
      return Error(ErrorCode::kCorrupt, folder + " does not belong to the same store as " +
                                            folder_of(paths.front(), run));
    }
    place = path;
    marks.push_back(member.mark);
    if (!first) first = std::move(member);
  }
  return AnyStore{std::move(ordered), std::move(first->manifest.layout),
                  common_mark(std::move(marks))};
}

Result<ClosedStore> find_closed(IoQueue& queue, const std::vector<std::string>& paths,
                                const std::string& run) {
  SLUICE_ASSIGN_OR_RETURN(AnyStore store, find_any(queue, paths, run));
  if (!store.mark) {
    return Error(ErrorCode::kCorrupt,
                 folder_of(paths.front(), run) +
                     " was left by a run that was killed: its records may be half-written and are "
                     "not used. Resume from a checkpoint");
  }
  return ClosedStore{std::move(store.paths), std::move(store.layout), std::move(*store.mark)};
}

}  // namespace sluice::swap
