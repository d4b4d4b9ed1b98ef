#include "tools/session/resume_point.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "aio/log.h"
#include "aio/text.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/config/stored_config.h"
#include "engine/observe/metrics_log.h"

namespace sluice::tools {
namespace {

using engine::CheckpointEntry;
using engine::CheckpointFolder;

constexpr const char* kSetAside = "--set-aside-later";

bool is_own(const RunFolder& folder, const CheckpointEntry& checkpoint) {
  return engine::parent_folder(checkpoint.path) == folder.checkpoints().path();
}

// The checkpoint's name for --resume.
std::string name_of(const RunFolder& folder, const CheckpointEntry& checkpoint) {
  return is_own(folder, checkpoint) ? checkpoint.name : checkpoint.path;
}

std::string list_of(const std::vector<CheckpointEntry>& entries) {
  if (entries.size() == 1) return entries.front().name;
  return entries.front().name + " to " + entries.back().name;
}

// The run's later checkpoints; or all of the run's, if `checkpoint` belongs to another run.
Result<std::vector<CheckpointEntry>> in_the_way_of(const RunFolder& folder,
                                                   const CheckpointEntry& checkpoint) {
  return folder.checkpoints().later_than(is_own(folder, checkpoint) ? checkpoint.step : -1);
}

Error refusal(const RunFolder& folder, const ResumePoint& point, const ResumeCommand& command) {
  const CheckpointEntry& from = *point.checkpoint;
  const std::string name = name_of(folder, from);
  const std::string list = list_of(point.in_the_way);
  const std::string here = folder.checkpoints().path();
  const std::string keep = ". To move them to a folder " + here + "/set-aside-at-" +
                           engine::checkpoint_name(from.step) + ": " + command(name, kSetAside);
  if (is_own(folder, from))
    return Error(ErrorCode::kAlreadyExists,
                 "after " + from.name + " the run has " + list +
                     ", which would not belong to the continued run" + keep +
                     ". To keep this run unchanged: " + command(from.path, "--out NEW_FOLDER"));
  return Error(ErrorCode::kAlreadyExists,
               here + " has checkpoints of its own, " + list + ", which " + from.path +
                   " does not belong to. To continue the existing run: " + command("", "") + keep +
                   ". Or choose another --out");
}

Status read_manifest(const RunFolder& folder, ResumePoint& point) {
  SLUICE_ASSIGN_OR_RETURN(engine::CheckpointManifest manifest,
                          engine::read_checkpoint_manifest(folder.queue(), point.checkpoint->path));
  point.stored = std::move(manifest.state);
  point.records = std::move(manifest.records);
  if (!point.stored.run.imported())
    point.configuration = config::resolve_stored(point.stored.configuration);
  return {};
}

// The continued run writes to the store of its checkpoint, where it would overwrite the state of a
// later one.
Status check_later_ones(const ResumePoint& point) {
  if (!point.own || !point.records) return {};
  for (const CheckpointEntry& later : point.in_the_way) {
    if (later.store_paths.empty()) continue;
    return Error(ErrorCode::kAlreadyExists,
                 later.name +
                     " has its state in the run's store, where the continued run would "
                     "overwrite it. To keep it: sluice copy " +
                     shell_word(later.path) + " NEW_FOLDER. Then remove " + later.path +
                     ", and resume again");
  }
  return {};
}

// Checkpoints that will be moved are left out.
Status warn_of_damaged(const RunFolder& folder, const ResumePoint& point) {
  SLUICE_ASSIGN_OR_RETURN(const auto all, folder.checkpoints().list());
  for (const CheckpointEntry& entry : all) {
    const auto is_same = [&](const CheckpointEntry& other) { return other.path == entry.path; };
    if (!entry.complete() &&
        std::none_of(point.in_the_way.begin(), point.in_the_way.end(), is_same))
      log::warning(why_not(entry).with_suffix("; it is not changed").message());
  }
  return {};
}

}  // namespace

Error with_older_one(Error error, const RunFolder& folder, const CheckpointEntry& checkpoint,
                     const ResumeCommand& command) {
  // A checkpoint with other errors may become readable again, so no older one is proposed.
  if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kNewerVersion) return error;
  const CheckpointFolder siblings(folder.queue(), engine::parent_folder(checkpoint.path));
  const auto before = siblings.before(checkpoint.step);
  if (!before.ok()) return error;
  if (!*before)
    return std::move(error).with_suffix(
        "; there is no older complete checkpoint. To start a new run, choose another --out");
  return std::move(error).with_suffix(
      "; the previous checkpoint is " + (*before)->name + ". To continue from there: " +
      command(name_of(folder, **before), is_own(folder, **before) ? kSetAside : ""));
}

Result<ResumePoint> find_resume_point(const RunFolder& folder, const config::Run& run,
                                      const ResumeCommand& command) {
  ResumePoint point;
  if (run.resume.empty()) return point;
  SLUICE_ASSIGN_OR_RETURN(point.checkpoint, folder.find_entry(run.resume));
  if (point.checkpoint && !point.checkpoint->complete())
    return with_older_one(why_not(*point.checkpoint), folder, *point.checkpoint, command);
  if (point.checkpoint) {
    point.own = is_own(folder, *point.checkpoint);
    SLUICE_ASSIGN_OR_RETURN(point.in_the_way, in_the_way_of(folder, *point.checkpoint));
  }
  if (!point.in_the_way.empty() && run.later_checkpoints == config::LaterCheckpoints::kRefuse)
    return refusal(folder, point, command);
  if (point.checkpoint) SLUICE_RETURN_IF_ERROR(read_manifest(folder, point));
  SLUICE_RETURN_IF_ERROR(check_later_ones(point));
  SLUICE_RETURN_IF_ERROR(warn_of_damaged(folder, point));
  // Read the metrics now, so that an error is found before the run is set up.
  const auto metrics = engine::read_metrics(folder.file("metrics.jsonl"));
  if (!metrics.ok() && metrics.error().code() != ErrorCode::kNotFound) return metrics.error();
  return point;
}

Status make_way(const RunFolder& folder, const ResumePoint& point, std::ostream& notices,
                const std::function<Status(const std::string& cut_path)>& cut) {
  if (point.in_the_way.empty()) return cut("");
  SLUICE_ASSIGN_OR_RETURN(const std::string aside,
                          folder.checkpoints().set_aside(
                              point.in_the_way, point.checkpoint->step,
                              [&](const std::string& to) { return cut(to + "/metrics.jsonl"); }));
  notices << "set aside " << list_of(point.in_the_way) << " in " << aside << " (sluice ls "
          << shell_word(aside)
          << " lists them; remove the folder when they are no longer needed)\n";
  return {};
}

}  // namespace sluice::tools
