#include "swap/store_inventory.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "aio/io_request.h"
#include "aio/page_memory.h"
#include "aio/small_file.h"
#include "aio/striped_file.h"
#include "aio/units.h"
#include "swap/record_image.h"
#include "swap/record_work.h"
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
                 folder + " has no store.json: its run was killed while creating it");
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
      return what + "was left incomplete by " + owner + ", which was killed";
    case StoreCondition::kElsewhere:
      return what + "is in use by, or was left by, " + owner +
             ", whose lock may not be visible on this machine or mount";
    case StoreCondition::kUnclaimed:
      return what + "contains no store, and does not name its owner";
    case StoreCondition::kUnknown:
      return what + "of " + owner + " is kept, because its contents are unknown: " +
             (found.problem.ok() ? "" : found.problem.error().message());
  }
  return what;
}

Status remove_store(IoQueue& queue, const StoreDirectories& directories) {
  aio::FileSystem& files = queue.backend().files();
  for (const auto& directory : directories) SLUICE_RETURN_IF_ERROR(directory->refuse_removal());
  for (const auto& path_of : {closed_mark_path, frozen_mark_path, manifest_path})
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
  if (paths.empty()) return Error(ErrorCode::kInvalidArgument, "no path to search for a store");
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

namespace {

constexpr std::size_t kMostBuffers = 4;

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

class Scrubber {
 public:
  Scrubber(aio::IoQueue& queue, aio::Executor& executor, const StoreLayout& layout,
           const aio::IoTarget& data)
      : queue_(queue), executor_(executor), layout_(layout), data_(data) {}

  Result<ScrubReport> run(const ScrubProgress& on_progress) {
    const std::size_t copies =
        layout_.records().size() * static_cast<std::size_t>(layout_.options().places);
    const std::size_t buffers = std::min(copies, kMostBuffers);
    SLUICE_ASSIGN_OR_RETURN(memory_,
                            aio::PageMemory::map(buffers * layout_.largest_image_bytes(), true));
    const auto requests = std::make_unique<aio::IoRequest[]>(buffers);

    for (std::size_t copy = 0; copy < buffers; ++copy) start(requests[copy], copy, copy);
    for (std::size_t copy = 0; copy < copies; ++copy) {
      const std::size_t slot = copy % buffers;
      judge(copy, queue_.wait(requests[slot]), image(slot, record_of(copy)));
      if (copy + buffers < copies) start(requests[slot], slot, copy + buffers);
      if (on_progress) on_progress(report_.bytes, layout_.total_bytes());
    }
    return std::move(report_);
  }

 private:
  std::span<std::byte> image(std::size_t slot, RecordId record) {
    return memory_.bytes().subspan(slot * layout_.largest_image_bytes(),
                                   layout_.shape(record).image_bytes());
  }
  // The copies of a record, in its places, follow each other.
  RecordId record_of(std::size_t copy) const {
    return static_cast<RecordId>(copy / static_cast<std::size_t>(layout_.options().places));
  }
  int place_of(std::size_t copy) const {
    return static_cast<int>(copy % static_cast<std::size_t>(layout_.options().places));
  }
  void start(aio::IoRequest& request, std::size_t slot, std::size_t copy) {
    const RecordId record = record_of(copy);
    request.prepare_read(data_, layout_.offset_bytes(record, place_of(copy)), image(slot, record));
    queue_.submit(request);
  }

  // A record is intact if one of its copies is: a killed run leaves others half-written.
  void judge(std::size_t copy, const Status& read, std::span<std::byte> bytes) {
    const RecordId record = record_of(copy);
    if (place_of(copy) == 0) seen_ = {};
    report_.bytes += bytes.size();
    if (!read.ok() || !all_zero(bytes.first(kRecordHeaderBytes))) {
      const Status sound = read.ok() ? check(record, bytes) : read;
      (sound.ok() ? seen_.intact : seen_.damaged) = true;
      if (!sound.ok()) seen_.problem = sound.error().message();
    }
    if (place_of(copy) + 1 < layout_.options().places) return;
    ++report_.records;
    if (!seen_.intact && seen_.damaged)
      report_.bad.push_back({.name = name_of(layout_.record(record)), .problem = seen_.problem});
    else if (!seen_.intact)
      ++report_.never_written;
  }

  Status check(RecordId id, std::span<std::byte> bytes) {
    RecordImage record(layout_.shape(id), bytes);
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t generation, record.claimed_generation());
    return work_on_record(executor_, record, {.check = generation});
  }

  aio::IoQueue& queue_;
  aio::Executor& executor_;
  const StoreLayout& layout_;
  const aio::IoTarget& data_;
  aio::PageMemory memory_;
  ScrubReport report_;
  struct Seen {
    bool intact = false;
    bool damaged = false;
    std::string problem;
  } seen_;  // of one record's copies
};

}  // namespace

Result<ScrubReport> scrub(aio::IoQueue& queue, aio::Executor& executor,
                          const std::vector<std::string>& paths, const std::string& run,
                          const ScrubProgress& on_progress) {
  std::vector<std::unique_ptr<aio::FileLock>> locks;
  for (const std::string& path : paths) {
    const std::string folder = folder_of(path, run);
    SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(folder));
    if (!there) return Error(ErrorCode::kNotFound, "there is no state store in " + folder);
    auto lock = queue.backend().files().lock(lock_path(folder));
    if (!lock.ok())
      return std::move(lock).error().with_context("the store is in use by a live run");
    locks.push_back(std::move(*lock));
  }
  SLUICE_ASSIGN_OR_RETURN(const FoundStore store, find_store(queue, paths, run));

  std::vector<std::string> files;
  files.reserve(store.paths.size());
  for (const std::string& path : store.paths) files.push_back(data_path(folder_of(path, run)));
  aio::StripedFile::Options open;
  open.stripe_bytes = store.layout.options().stripe_bytes;
  open.weights = store.layout.options().weights;
  open.file.open.access = aio::OpenOptions::Access::kRead;
  open.file.size_bytes = store.layout.total_bytes();
  SLUICE_ASSIGN_OR_RETURN(const auto data, aio::StripedFile::open(queue, files, open));
  return Scrubber(queue, executor, store.layout, *data).run(on_progress);
}

}  // namespace sluice::swap
