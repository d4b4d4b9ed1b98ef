#include "engine/checkpoint/run_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_names.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kOldTokenizer = "tokenizer.json";  // written by imports of old versions
constexpr std::string_view kRunFiles[] = {"metrics.jsonl", "metrics-cut.jsonl", "events.jsonl",
                                          "trace.json",    kSharedMarkName,     "base_model.json",
                                          kConfig};
constexpr std::string_view kLogs[] = {"metrics.jsonl",
                                      "events.jsonl"};  // in parts with the suffixes ".1", ".2"
constexpr std::string_view kTokenizer = "tokenizer";
constexpr std::string_view kFreshEnding = ".new";
constexpr std::string_view kRunFormat = "sluice-run";
constexpr int kRunVersion = 1;
constexpr std::uint64_t kMostMarkBytes = 64 << 10;
constexpr std::uint64_t kMostConfigBytes = 16 << 20;

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_log_part(std::string_view name) {
  return std::any_of(std::begin(kLogs), std::end(kLogs), [&](std::string_view log) {
    if (!name.starts_with(log) || name.size() < log.size() + 2 || name[log.size()] != '.')
      return false;
    const std::string_view number = name.substr(log.size() + 1);
    return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  });
}

std::string_view without_fresh(std::string_view name) {
  if (name.ends_with(kFreshEnding)) name.remove_suffix(kFreshEnding.size());
  return name;
}

// Names under which a run writes files and folders.
bool is_own_name(std::string_view name) {
  const std::string_view whole = without_fresh(name);
  return is_one_of(whole, kRunFiles) || is_log_part(name) || whole == kRunMarkName ||
         name == kRunLockName || whole == kTokenizer ||
         name.starts_with("tokenizer-before-step-") || name == kCheckpointsFolder;
}

// Names that a run killed during its start may leave.
bool is_left_of_beginning(std::string_view name) {
  return name == kRunLockName || without_fresh(name) == kSharedMarkName ||
         without_fresh(name) == kRunMarkName;
}

// Names to ignore: those that folders often contain from the beginning, and stores of offloaded
// state.
bool is_of_no_account(std::string_view name) {
  return name.starts_with('.') || name.starts_with("sluice-") || name == "lost+found" ||
         name.ends_with(".log") || name.ends_with(".out") || name.ends_with(".err");
}

std::string run_path(const std::string& directory, std::string_view name) {
  return directory + "/" + std::string(name);
}

// A discarded value if the file is not JSON or cannot be read.
Json json_of(aio::IoQueue& queue, const std::string& path, std::uint64_t most_bytes) {
  const auto text = aio::read_small_file(queue, path, most_bytes);
  return text.ok() ? json_or_discarded<Json>(*text) : Json(Json::value_t::discarded);
}

// The files that the mark lists; none if there is no mark.
std::vector<std::string> marked_files(aio::IoQueue& queue, const std::string& directory) {
  const Json mark = json_of(queue, run_path(directory, kRunMarkName), kMostMarkBytes);
  if (!mark.is_object() || mark.value("format", Json()) != Json(kRunFormat)) return {};
  std::vector<std::string> names;
  for (const Json& name : mark.value("files", Json::array()))
    if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

// A model's config.json has model_type or architectures.
bool is_run_config(const Json& config) {
  return config.is_object() && !config.contains("model_type") &&
         !config.contains("architectures") && config.contains("model") &&
         config.at("model").is_object();
}

Result<bool> has_whole_checkpoint(aio::IoQueue& queue, const std::string& directory) {
  const CheckpointFolder checkpoints(queue, run_path(directory, kCheckpointsFolder));
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints.list());
  return std::any_of(list.begin(), list.end(),
                     [](const CheckpointEntry& entry) { return entry.complete(); });
}

// A run of a version without marks that was interrupted before its first checkpoint.
bool is_older_run(const std::vector<std::string>& names) {
  if (!is_one_of(kRunLockName, names)) return false;
  if (is_one_of(kConfig, names)) return true;  // check_run_directory() has found it to be a run's
  return std::all_of(names.begin(), names.end(), is_own_name);
}

Error foreign(const std::string& directory, const std::string& why) {
  return {ErrorCode::kAlreadyExists,
          directory + " is not a run's folder (" + why +
              "), so nothing is written to it or removed from it: choose another --out (or "
              "run_dir): a new folder, an empty one, or that of a run"};
}

Status check_no_links(aio::FileSystem& files, const std::string& directory,
                      const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_own_name(name)) continue;
    const std::string path = run_path(directory, name);
    SLUICE_ASSIGN_OR_RETURN(const aio::PathKind kind, files.kind_of(path));
    if (kind != aio::PathKind::kLink) continue;
    // The search for checkpoints gives a better error for an unmounted drive.
    SLUICE_ASSIGN_OR_RETURN(const bool leads_on, files.exists(path));
    if (name == kCheckpointsFolder && !leads_on) continue;
    return Error(ErrorCode::kInvalidArgument,
                 path +
                     " is a link, and a run writes and removes nothing through links: replace it "
                     "by its target, or choose another --out (or run_dir)");
  }
  return {};
}

// A new run without a tokenizer would use it.
Status set_old_tokenizer_aside(aio::FileSystem& files, const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(
      const std::string aside,
      aio::unused_name(files, run_path(directory, "before-step-1-" + std::string(kOldTokenizer))));
  SLUICE_RETURN_IF_ERROR(files.rename(run_path(directory, kOldTokenizer), aside));
  log::info("the tokenizer of the previous run is now " + aside);
  return {};
}

}  // namespace

Result<bool> is_unused_run_directory(aio::FileSystem& files, const std::string& directory) {
  const auto names = files.list(directory);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return true;
  if (!names.ok()) return names.error();
  return std::all_of(names->begin(), names->end(), is_left_of_beginning);
}

Status check_checkpoints_are_no_link(aio::FileSystem& files, const std::string& directory) {
  return check_no_links(files, directory, {std::string(kCheckpointsFolder)});
}

Status check_run_directory(aio::IoQueue& queue, const std::string& directory) {
  aio::FileSystem& files = queue.backend().files();
  const auto names = files.list(directory);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return {};
  if (!names.ok()) return names.error();
  SLUICE_RETURN_IF_ERROR(check_no_links(files, directory, *names));
  if (std::all_of(names->begin(), names->end(), is_left_of_beginning)) return {};
  const Error not_its_config = foreign(directory, "its config.json is not that of a run");
  bool is_unreadable = false;  // damaged, or with comments: the mark or checkpoints decide
  if (is_one_of(kConfig, *names)) {
    const Json config = json_of(queue, run_path(directory, kConfig), kMostConfigBytes);
    is_unreadable = config.is_discarded();
    if (!is_unreadable && !is_run_config(config)) return not_its_config;
  }
  if (!marked_files(queue, directory).empty()) return {};
  const auto is_new = [](const std::string& name) {
    return is_left_of_beginning(name) || is_of_no_account(name);
  };
  if (std::all_of(names->begin(), names->end(), is_new)) return {};
  SLUICE_ASSIGN_OR_RETURN(const bool whole, has_whole_checkpoint(queue, directory));
  if (whole) return {};
  if (is_unreadable) return not_its_config;
  if (is_older_run(*names)) return {};
  const auto other = std::find_if_not(names->begin(), names->end(), is_new);
  return foreign(directory, "it contains " + *other);
}

bool may_hold_old_tokenizer(aio::IoQueue& queue, const std::string& directory) {
  const std::vector<std::string> named = marked_files(queue, directory);
  return named.empty() || is_one_of(kOldTokenizer, named);
}

Status mark_run_directory(aio::IoQueue& queue, const std::string& directory) {
  Json mark = {{"format", kRunFormat}, {"version", kRunVersion}, {"files", kRunFiles}};
  SLUICE_ASSIGN_OR_RETURN(const bool has_tokenizer,
                          queue.backend().files().exists(run_path(directory, kOldTokenizer)));
  if (has_tokenizer && may_hold_old_tokenizer(queue, directory))
    mark["files"].push_back(kOldTokenizer);
  return aio::write_small_file(queue, run_path(directory, kRunMarkName), mark.dump(1) + "\n");
}

Status remove_run_files(aio::IoQueue& queue, const std::string& directory) {
  aio::FileSystem& files = queue.backend().files();
  std::vector<std::string> named = marked_files(queue, directory);
  const bool is_marked = !named.empty();
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(directory));
  if (is_one_of(kOldTokenizer, names) && (!is_marked || is_one_of(kOldTokenizer, named)))
    SLUICE_RETURN_IF_ERROR(set_old_tokenizer_aside(files, directory));
  if (!is_marked) {
    // Write the mark first: without its files, a run interrupted here could not be identified.
    SLUICE_RETURN_IF_ERROR(mark_run_directory(queue, directory));
    named.assign(std::begin(kRunFiles), std::end(kRunFiles));
  }
  // The configuration identifies the rest of the files, so it is removed last.
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name != kConfig; });
  const auto is_named = [&](std::string_view name) { return is_one_of(name, named); };
  for (const std::string& name : names) {
    const bool is_part = is_log_part(name) && is_named(name.substr(0, name.rfind('.')));
    if (!is_part && !(is_one_of(name, kRunFiles) && is_named(name))) continue;
    SLUICE_ASSIGN_OR_RETURN(const aio::PathKind kind, files.kind_of(run_path(directory, name)));
    if (kind != aio::PathKind::kFile) continue;
    SLUICE_RETURN_IF_ERROR(files.remove(run_path(directory, name)));
  }
  return {};
}

}  // namespace sluice::engine
