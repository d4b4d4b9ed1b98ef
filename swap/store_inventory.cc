#include "swap/store_inventory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/log.h"
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

Result<StoreManifest> read_manifest(IoQueue& queue, const std::string& folder) {
  const std::string path = manifest_path(folder);
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxManifestBytes));
  auto manifest = parse_manifest(text);
  if (!manifest.ok()) return std::move(manifest).error().with_context(path);
  return manifest;
}

// Nothing where there is none.
Result<std::optional<ClosedMark>> read_mark(IoQueue& queue, const std::string& folder) {
  const std::string path = closed_mark_path(folder);
  auto text = aio::read_small_file(queue, path, kMaxManifestBytes);
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::kNotFound) return std::optional<ClosedMark>();
    return std::move(text).error();
  }
  auto mark = parse_closed_mark(*text);
  if (!mark.ok()) return std::move(mark).error().with_context(path);
  return std::optional(std::move(*mark));
}

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

// One mark is enough: the first is written when all records are durable, and the last is gone
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

// Whether another path of the same store has the mark that this folder lacks. A path that cannot be
// searched is an error: what is not closed here may be closed there.
Result<bool> closed_elsewhere(IoQueue& queue, const FoundRun& found) {
  const auto manifest = read_manifest(queue, found.directory);
  if (!manifest.ok() && manifest.error().code() == ErrorCode::kNotFound) return false;
  if (!manifest.ok()) return manifest.error();
  const StoreLayoutOptions& options = manifest->layout.options();
  for (const std::string& path : options.paths) {
    SLUICE_ASSIGN_OR_RETURN(const auto mark, read_mark(queue, folder_of(path, found.run)));
    if (mark && mark->store_id == options.store_id) return true;
  }
  return false;
}

Result<FoundStore> judge(IoQueue& queue, FoundRun found) {
  FoundStore store{.found = std::move(found), .condition = StoreCondition::kInUse, .problem = {}};
  if (store.found.in_use) return store;
  SLUICE_ASSIGN_OR_RETURN(const bool closed,
                          queue.backend().files().exists(closed_mark_path(store.found.directory)));
  const auto elsewhere = closed ? Result<bool>(true) : closed_elsewhere(queue, store.found);
  if (!elsewhere.ok()) {
    store.condition = StoreCondition::kUnknown;
    store.problem = elsewhere.error().message();
  } else if (*elsewhere) {
    store.condition = StoreCondition::kWhole;
  } else {
    // Not by the lock alone: whoever exports this drive to others may hold one that is not seen
    // here.
    store.condition =
        store.found.same_machine ? StoreCondition::kLeftover : StoreCondition::kElsewhere;
  }
  return store;
}

}  // namespace

std::string folder_of(const std::string& path, const std::string& run) {
  return path + "/sluice-" + run;
}

std::string_view to_string(StoreCondition condition) {
  switch (condition) {
    case StoreCondition::kInUse:
      return "in use";
    case StoreCondition::kWhole:
      return "whole";
    case StoreCondition::kLeftover:
      return "left by a killed run";
    case StoreCondition::kElsewhere:
      return "of another host";
    case StoreCondition::kUnknown:
      return "cannot be read";
  }
  return "";
}

std::string describe(const RunOwner& owner) {
  return "process " + std::to_string(owner.pid) + " on " + owner.host + " (started " +
         owner.started_utc + ")";
}

std::string describe(const FoundStore& store) {
  const std::string owner = store.found.owner ? describe(*store.found.owner) : "an unknown process";
  std::string what = store.found.directory + " (" + format_bytes(store.found.bytes) + ") ";
  switch (store.condition) {
    case StoreCondition::kInUse:
      return what + "is in use by " + owner;
    case StoreCondition::kWhole:
      return what + "is a whole store, closed by " + owner;
    case StoreCondition::kLeftover:
      return what + "was left half-written by " + owner + ", which was killed";
    case StoreCondition::kElsewhere:
      return what + "is in use by, or was left by, " + owner;
    case StoreCondition::kUnknown:
      return what + "of " + owner + " cannot be read, and is left alone: " + store.problem;
  }
  return what;
}

Status check_readable(IoQueue& queue, const std::string& folder) {
  const auto manifest = read_manifest(queue, folder);
  if (!manifest.ok() && manifest.error().code() == ErrorCode::kNotFound) return {};
  return manifest.status();
}

Result<std::vector<FoundStore>> list_stores(IoQueue& queue, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<FoundRun> runs, find_runs(queue, path));
  std::vector<FoundStore> stores;
  for (FoundRun& run : runs) {
    SLUICE_ASSIGN_OR_RETURN(FoundStore store, judge(queue, std::move(run)));
    stores.push_back(std::move(store));
  }
  return stores;
}

Result<std::vector<FoundStore>> remove_leftovers(IoQueue& queue,
                                                 const std::vector<std::string>& paths) {
  std::vector<FoundStore> removed;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<FoundStore> stores, list_stores(queue, path));
    for (FoundStore& store : stores) {
      if (store.condition != StoreCondition::kLeftover) continue;
      // Its lock proves that nobody has come to use it since.
      auto directory = RunDirectory::take(queue, path, store.found.run);
      if (!directory.ok()) {
        if (directory.error().code() == ErrorCode::kBusy) continue;
        return std::move(directory).error();
      }
      SLUICE_ASSIGN_OR_RETURN(
          const bool closed_since,
          queue.backend().files().exists(closed_mark_path(store.found.directory)));
      if (closed_since) continue;
      SLUICE_RETURN_IF_ERROR((*directory)->remove_all());
      removed.push_back(std::move(store));
    }
  }
  return removed;
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
