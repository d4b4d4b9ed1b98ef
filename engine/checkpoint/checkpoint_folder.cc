#include "engine/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

// A link to a drive that is not mounted.
Error leads_nowhere(const std::string& path) {
  return {ErrorCode::kIo, path + " is a link whose target does not exist: is its drive mounted?"};
}

// The names in the folder; none if it does not exist. A link to a missing target, or a file, is an
// error rather than an empty folder.
Result<std::vector<std::string>> names_in(aio::FileSystem& files, const std::string& folder) {
  using aio::PathKind;
  auto listed = files.list(folder);
  if (listed.ok()) return listed;
  const bool is_missing = listed.error().code() == ErrorCode::kNotFound;
  if (!is_missing && listed.error().error_number() != ENOTDIR) return listed;
  SLUICE_ASSIGN_OR_RETURN(const PathKind kind, files.kind_of(folder));
  if (is_missing && kind == PathKind::kLink) return leads_nowhere(folder);
  if (is_missing && kind == PathKind::kNothing) return std::vector<std::string>();
  if (is_missing) return files.list(folder);  // it has just been created
  if (kind == PathKind::kNothing) return listed;
  return Error(
      ErrorCode::kIo,
      folder + " must be a folder, for the run's checkpoints, but is a file: move it away");
}

// The names of checkpoints, ordered by step; a replacement follows the checkpoint that it replaces.
Result<std::vector<std::string>> checkpoint_names(aio::FileSystem& files,
                                                  const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(auto names, names_in(files, folder));
  std::erase_if(names, [](const std::string& name) { return !parse_folder_name(name); });
  const auto key = [](const std::string& name) {
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    return std::pair(parsed.step, parsed.replacement);
  };
  std::sort(names.begin(), names.end(),
            [&](const std::string& a, const std::string& b) { return key(a) < key(b); });
  return names;
}

// "step-12" -> "12"; other texts as they are.
std::string without_prefix(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

Result<std::optional<CheckpointEntry>> if_complete(Result<std::optional<CheckpointEntry>> found) {
  if (found.ok() && *found && !(*found)->complete()) return why_not(**found);
  return found;
}

}  // namespace

std::vector<CheckpointEntry>::const_iterator best_of(const std::vector<CheckpointEntry>& entries) {
  auto best = entries.end();
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (!entry->complete() || !entry->validation_loss) continue;
    if (best == entries.end() || *entry->validation_loss < *best->validation_loss) best = entry;
  }
  return best;
}

CheckpointFolder::CheckpointFolder(aio::IoQueue& queue, std::string folder)
    : queue_(queue), folder_(std::move(folder)) {}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  return folder_ + "/" + checkpoint_name(step);
}

Result<std::vector<CheckpointEntry>> CheckpointFolder::list() const {
  aio::FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(files, folder_));
  std::vector<CheckpointEntry> entries;
  entries.reserve(names.size());
  for (const std::string& name : names) {
    const std::string path = folder_ + "/" + name;
    auto entry = look_at_checkpoint(queue_, path);
    if (!entry) {  // it has just disappeared, or is a file or a broken link
      SLUICE_ASSIGN_OR_RETURN(const aio::PathKind kind, files.kind_of(path));
      SLUICE_ASSIGN_OR_RETURN(const bool leads_on, files.exists(path));
      if (kind != aio::PathKind::kLink || leads_on) continue;
      entry = CheckpointEntry{.name = name,
                              .path = path,
                              .step = parse_folder_name(name).value_or(FolderName()).step,
                              .status = leads_nowhere(path)};
    }
    entries.push_back(std::move(*entry));
  }
  return entries;
}

Result<std::optional<CheckpointEntry>> CheckpointFolder::newest_entry() const {
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::erase_if(entries, [](const CheckpointEntry& entry) { return entry.leftover; });
  if (entries.empty()) return std::optional<CheckpointEntry>();
  return std::optional(std::move(entries.back()));
}

Result<std::optional<CheckpointEntry>> CheckpointFolder::newest() const {
  return if_complete(newest_entry());
}

Result<std::optional<CheckpointEntry>> CheckpointFolder::before(std::int64_t step) const {
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::erase_if(entries, [&](const CheckpointEntry& entry) {
    return !entry.complete() || entry.step >= step;
  });
  if (entries.empty()) return std::optional<CheckpointEntry>();
  return std::optional(std::move(entries.back()));
}

Result<std::vector<CheckpointEntry>> CheckpointFolder::later_than(std::int64_t step) const {
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::erase_if(entries,
                [&](const CheckpointEntry& entry) { return entry.leftover || entry.step <= step; });
  return entries;
}

Result<std::optional<CheckpointEntry>> CheckpointFolder::best() const {
  SLUICE_ASSIGN_OR_RETURN(const auto entries, list());
  const auto best = best_of(entries);
  return best == entries.end() ? std::optional<CheckpointEntry>() : std::optional(*best);
}

Result<CheckpointEntry> CheckpointFolder::find_entry(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  if (name == kBestName) {
    if (const auto best = best_of(entries); best != entries.end()) return *best;
    return Error(ErrorCode::kNotFound,
                 "no checkpoint in " + folder_ +
                     " has a validation loss, so there is no best one: run.keep_best saves after "
                     "evaluations (run.eval_every)");
  }
  std::optional<CheckpointEntry> found;
  std::string others;
  for (CheckpointEntry& entry : entries) {
    if (entry.leftover) continue;
    if (entry.name == name || std::to_string(entry.step) == without_prefix(name)) {
      if (!found || entry.complete()) found = std::move(entry);
    } else if (entry.complete()) {
      others.append(others.empty() ? "" : ", ").append(entry.name);
    }
  }
  if (found) return std::move(*found);
  return Error(ErrorCode::kNotFound,
               "there is no checkpoint " + in_quotes(name) + " in " + folder_ +
                   (others.empty() ? ", nor any other" : ", there are " + others));
}

Result<CheckpointEntry> CheckpointFolder::find(const std::string& name) const {
  auto found = find_entry(name);
  if (found.ok() && !found->complete()) return why_not(*found);
  return found;
}

Result<std::vector<CheckpointEntry>> CheckpointFolder::beyond(int keep_last,
                                                              std::int64_t up_to_step,
                                                              bool keep_best,
                                                              bool only_in_stores) const {
  if (keep_last < 1)
    return Error(ErrorCode::kInvalidArgument,
                 "at least one checkpoint must be kept, not " + std::to_string(keep_last));
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::erase_if(entries, [&](const CheckpointEntry& entry) {
    return !entry.complete() || entry.step > up_to_step ||
           (only_in_stores && entry.store_paths.empty()) ||
           is_linked(queue_.backend().files(), entry.path);
  });
  const auto best = keep_best ? best_of(entries) : entries.end();
  const std::string best_name = best == entries.end() ? std::string() : best->name;
  entries.resize(entries.size() - std::min(entries.size(), static_cast<std::size_t>(keep_last)));
  std::erase_if(entries, [&](const CheckpointEntry& entry) { return entry.name == best_name; });
  return entries;
}

// Otherwise the remains of a failed removal would take space until the run's next start. Another
// failure does not stop the removal of the rest.
void CheckpointFolder::finish_removals(const std::vector<std::string>& names) {
  aio::FileSystem& files = queue_.backend().files();
  for (const std::string& name : names) {
    const std::string path = folder_ + "/" + name;
    const auto entry = look_at_checkpoint(queue_, path);
    if (!entry || !entry->leftover || is_linked(files, path)) continue;
    const auto marked = files.exists(path + "/" + std::string(kRemovalMarkName));
    if (!marked.ok() || !*marked) continue;
    const Status removed = remove_checkpoint(queue_, path);
    if (!removed.ok())
      log::warning_once(
          "removal of " + path,
          "an old checkpoint could not be removed completely: " + removed.error().message());
  }
}

Result<std::vector<std::string>> CheckpointFolder::prune(int keep_last, std::int64_t up_to_step,
                                                         bool keep_best, bool only_in_stores) {
  aio::FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(files, folder_));
  for (const std::string& name : names) {  // a checkpoint and its replacement would count as two
    const auto fresh = look_at_checkpoint(queue_, folder_ + "/" + name);
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    if (parsed.replacement && fresh && fresh->complete() && !is_linked(files, fresh->path))
      SLUICE_RETURN_IF_ERROR(settle_replacement(queue_, path_of(parsed.step)));
  }
  finish_removals(names);
  SLUICE_ASSIGN_OR_RETURN(const auto entries,
                          beyond(keep_last, up_to_step, keep_best, only_in_stores));
  std::vector<std::string> removed;
  for (const CheckpointEntry& entry : entries) {
    SLUICE_RETURN_IF_ERROR(remove_checkpoint(queue_, entry.path));
    removed.push_back(entry.name);
  }
  return removed;
}

Result<std::vector<std::string>> CheckpointFolder::clean_leftovers() {
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(queue_.backend().files(), folder_));
  std::vector<std::string> cleaned;
  for (const std::string& name : names) {
    const auto entry = look_at_checkpoint(queue_, folder_ + "/" + name);
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    if (!entry || is_linked(queue_.backend().files(), entry->path)) continue;
    if (entry->leftover)
      SLUICE_RETURN_IF_ERROR(remove_checkpoint(queue_, entry->path));
    else if (parsed.replacement && entry->complete())
      SLUICE_RETURN_IF_ERROR(settle_replacement(queue_, path_of(parsed.step)));
    else
      continue;
    cleaned.push_back(name);
  }
  return cleaned;
}

Result<std::string> CheckpointFolder::set_aside(const std::vector<CheckpointEntry>& entries,
                                                std::int64_t step, const Prepare& prepare) {
  aio::FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(std::string aside, aio::unused_name(files, folder_ + "/set-aside-at-" +
                                                                         checkpoint_name(step)));
  const std::string to = aside + "/" + last_name(folder_);
  SLUICE_RETURN_IF_ERROR(files.make_directories(to));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(folder_));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(aside));
  if (Status prepared = prepare ? prepare(aside) : Status(); !prepared.ok()) {
    for (const std::string& path : {to, aside}) static_cast<void>(files.remove(path));
    return std::move(prepared).error();
  }
  for (const CheckpointEntry& entry : entries)
    SLUICE_RETURN_IF_ERROR(files.rename(entry.path, to + "/" + entry.name));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(to));
  SLUICE_RETURN_IF_ERROR(files.sync_directory(folder_));
  return aside;
}

}  // namespace sluice::engine
