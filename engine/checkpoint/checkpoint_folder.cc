#include "engine/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <utility>

#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

// Their names, by step; a replacement behind what it replaces.
Result<std::vector<std::string>> checkpoint_names(aio::FileSystem& files,
                                                  const std::string& folder) {
  auto listed = files.list(folder);
  if (!listed.ok()) {
    if (listed.error().code() == ErrorCode::kNotFound) return std::vector<std::string>();
    return std::move(listed).error();
  }
  std::vector<std::string> names;
  for (std::string& name : *listed) {
    if (parse_folder_name(name)) names.push_back(std::move(name));
  }
  const auto key = [](const std::string& name) {
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    return std::pair(parsed.step, parsed.replacement);
  };
  std::sort(names.begin(), names.end(),
            [&](const std::string& a, const std::string& b) { return key(a) < key(b); });
  return names;
}

bool is_a_fact(const Status& status) {
  return status.ok() || status.error().code() == ErrorCode::kNotFound ||
         status.error().code() == ErrorCode::kCorrupt;
}

}  // namespace

CheckpointFolder::CheckpointFolder(aio::IoQueue& queue, std::string folder)
    : queue_(queue), folder_(std::move(folder)) {}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  return folder_ + "/" + checkpoint_name(step);
}

Status CheckpointFolder::check_files(const CheckpointManifest& manifest,
                                     const std::string& path) const {
  for (const StoredFile& stored : manifest.files) {
    if (stored.name == kWeightIndexName) continue;  // for other programs: loading does without it
    const std::string file_path = path + "/" + stored.name;
    const auto file = queue_.backend().files().open(file_path, {});
    if (!file.ok()) {
      if (file.error().code() != ErrorCode::kNotFound) return file.error();
      return Error(ErrorCode::kCorrupt, file_path + " is missing");
    }
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t bytes, (*file)->size_bytes());
    if (bytes != stored.bytes)
      return Error(ErrorCode::kCorrupt, file_path + " has " + std::to_string(bytes) +
                                            " bytes, and not " + std::to_string(stored.bytes));
  }
  return {};
}

CheckpointEntry CheckpointFolder::entry_of(const std::string& name) const {
  CheckpointEntry entry;
  entry.name = name;
  entry.path = folder_ + "/" + name;
  entry.step = parse_folder_name(name).value_or(FolderName()).step;
  const auto manifest = read_checkpoint_manifest(queue_, entry.path);
  entry.has_manifest = manifest.ok() || manifest.error().code() != ErrorCode::kNotFound;
  if (!manifest.ok()) {
    entry.status = manifest.error();
    return entry;
  }
  entry.bytes = manifest->total_bytes();
  entry.loss = manifest->state.loss;
  entry.validation_loss = manifest->state.validation_loss;
  const std::int64_t step = manifest->state.position.global_step;
  entry.status = step == entry.step
                     ? check_files(*manifest, entry.path)
                     : Error(ErrorCode::kCorrupt,
                             entry.path + " holds a checkpoint of step " + std::to_string(step));
  return entry;
}

Result<std::vector<CheckpointEntry>> CheckpointFolder::list() const {
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(queue_.backend().files(), folder_));
  std::vector<CheckpointEntry> entries;
  entries.reserve(names.size());
  for (const std::string& name : names) entries.push_back(entry_of(name));
  return entries;
}

Result<std::optional<CheckpointEntry>> CheckpointFolder::newest() const {
  SLUICE_ASSIGN_OR_RETURN(auto names, checkpoint_names(queue_.backend().files(), folder_));
  for (; !names.empty(); names.pop_back()) {
    CheckpointEntry entry = entry_of(names.back());
    if (!is_a_fact(entry.status)) return std::move(entry.status).error();
    if (entry.complete()) return std::optional(std::move(entry));
  }
  return std::optional<CheckpointEntry>();
}

Result<CheckpointEntry> CheckpointFolder::find(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::optional<CheckpointEntry> found;
  std::string others;
  for (CheckpointEntry& entry : entries) {
    if (entry.name == name || std::to_string(entry.step) == name) {
      if (!found || entry.complete()) found = std::move(entry);
    } else if (entry.complete()) {
      others.append(others.empty() ? "" : ", ").append(entry.name);
    }
  }
  if (!found)
    return Error(ErrorCode::kNotFound,
                 "there is no checkpoint " + in_quotes(name) + " in " + folder_ +
                     (others.empty() ? ", nor any other" : ", there are " + others));
  if (!found->complete())
    return std::move(found->status).error().with_context("checkpoint " + in_quotes(name));
  return std::move(*found);
}

Result<std::vector<std::string>> CheckpointFolder::prune(int keep_last) {
  if (keep_last < 1)
    return Error(ErrorCode::kInvalidArgument,
                 "at least one checkpoint is kept, not " + std::to_string(keep_last));
  aio::FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(files, folder_));
  for (const std::string& name : names) {  // a checkpoint and its replacement would count as two
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    if (parsed.replacement) SLUICE_RETURN_IF_ERROR(settle_replacement(files, path_of(parsed.step)));
  }
  SLUICE_ASSIGN_OR_RETURN(auto entries, list());
  std::erase_if(entries, [](const CheckpointEntry& entry) { return !entry.complete(); });
  std::vector<std::string> removed;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_last) < entries.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(remove_checkpoint(files, entries[i].path));
    removed.push_back(entries[i].name);
  }
  return removed;
}

Result<std::vector<std::string>> CheckpointFolder::clean_leftovers() {
  aio::FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const auto names, checkpoint_names(files, folder_));
  std::vector<std::string> cleaned;
  for (const std::string& name : names) {
    const std::string path = folder_ + "/" + name;
    const FolderName parsed = parse_folder_name(name).value_or(FolderName());
    SLUICE_ASSIGN_OR_RETURN(const bool whole,
                            files.exists(path + "/" + std::string(kManifestName)));
    if (parsed.replacement) {
      SLUICE_RETURN_IF_ERROR(settle_replacement(files, path_of(parsed.step)));
    } else if (!whole) {
      SLUICE_RETURN_IF_ERROR(remove_checkpoint(files, path));
    } else {
      continue;
    }
    cleaned.push_back(name);
  }
  return cleaned;
}

}  // namespace sluice::engine
