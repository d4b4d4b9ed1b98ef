#include "tools/session/change_notice.h"

#include <filesystem>
#include <ostream>
#include <string>

#include "aio/log.h"
#include "engine/config/changes.h"
#include "engine/config/kept_keys.h"
#include "engine/config/schedule_outlook.h"
#include "engine/config/stored_config.h"

namespace sluice::tools {
namespace {

void report_epochs(const config::Resolved& resolved, std::ostream& says) {
  if (!resolved.config.run.epochs) return;
  for (const config::KeyReport& report : resolved.reports)
    if (report.path == "run.steps" && report.source.empty())
      says << report.value << " steps: " << report.reason << "\n";
}

// Whether a change of this key gets a line of its own.
bool has_line(const std::string& path) {
  // The origin of the initial weights does not matter to a resumed run.
  return config::decides_results(path) && !path.starts_with("model.init") &&
         !config::concerns_schedule(path) && path != config::kDecayedKey;
}

void report_differences(const config::Config& was, const config::Config& now,
                        const config::RunPosition& position, std::ostream& says) {
  // Checkpoints have absolute paths.
  std::error_code error;
  const auto here = config::stored_config(now, std::filesystem::current_path(error).string());
  if (!here.ok()) {
    log::warning("what has changed since the checkpoint is not known: " + here.error().message());
    return;
  }
  for (const config::KeyChange& change : config::changed_keys(was, *here))
    if (has_line(change.path))
      says << "changed since the checkpoint: " << config::to_text(change) << "\n";
  const std::string schedule = config::change_of_schedule(was, now, position);
  const std::string keys = config::changed_schedule_keys(was, now);
  if (!schedule.empty())
    says << schedule << "\n";
  else if (!keys.empty())
    says << keys << "; the schedule stays as it was\n";
}

}  // namespace

Status report_changes(const config::Resolved& resolved, const ResumePoint& from,
                      std::ostream& says) {
  config::RunPosition position;
  report_epochs(resolved, says);
  if (from.configuration) {
    position = {.global_step = from.stored.position.global_step,
                .applied_step = from.stored.position.applied_step};
    const auto& was = *from.configuration;
    if (was.ok())
      report_differences(*was, resolved.config, position, says);
    else  // an older program's, with a value that is refused today
      log::warning("what has changed since the checkpoint is not known: " + was.error().message());
  }
  SLUICE_RETURN_IF_ERROR(config::check_steps_left(resolved.config, position));
  const std::string end = config::end_of_schedule(resolved.config, position);
  if (!end.empty()) log::warning(end);
  return {};
}

}  // namespace sluice::tools
