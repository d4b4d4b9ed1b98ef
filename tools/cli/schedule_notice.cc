#include "tools/cli/schedule_notice.h"

#include <iostream>
#include <string>
#include <utility>

#include "aio/log.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/config/schedule_outlook.h"

namespace sluice::tools {
namespace {

void tell_epochs(const config::Resolved& resolved) {
  if (!resolved.config.run.epochs) return;
  for (const config::KeyReport& report : resolved.reports)
    if (report.path == "run.steps" && report.source.empty())
      std::cerr << report.value << " steps: " << report.reason << "\n";
}

// The configuration in a checkpoint may be an older program's, with what is refused today.
void tell_change(const engine::CheckpointState& state, const config::Config& now,
                 const config::RunPosition& position) {
  config::Sources sources;
  sources.run_file = config::Source{.name = "the checkpoint", .text = state.configuration};
  const auto was = config::resolve(sources);
  if (!was.ok()) {
    log::warning("whether the schedule is the one of the checkpoint is not known: " +
                 was.error().message());
    return;
  }
  const std::string change = config::change_of_schedule(was->config, now, position);
  if (!change.empty()) {
    std::cerr << change << "\n";
  } else if (was->config.run.steps != now.run.steps) {
    std::cerr << "run.steps was " << was->config.run.steps << " and is " << now.run.steps
              << "; the schedule stays as it was\n";
  }
}

}  // namespace

Status tell_schedule(const config::Resolved& resolved, const RunFolder& folder,
                     const std::optional<engine::CheckpointEntry>& from) {
  config::RunPosition position;
  std::optional<engine::CheckpointState> state;
  if (from) {
    auto manifest = engine::read_checkpoint_manifest(folder.queue(), from->path);
    if (!manifest.ok()) return std::move(manifest).error();
    state = std::move(manifest->state);
  }
  const bool goes_on = state && !state->run.imported();
  if (goes_on) {
    position = {.global_step = state->position.global_step,
                .applied_step = state->position.applied_step};
  }
  tell_epochs(resolved);
  if (goes_on) tell_change(*state, resolved.config, position);
  SLUICE_RETURN_IF_ERROR(config::check_steps_left(resolved.config, position));
  const std::string end = config::end_of_schedule(resolved.config, position);
  if (!end.empty()) log::warning(end);
  return {};
}

}  // namespace sluice::tools
