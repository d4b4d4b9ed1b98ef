#include "tools/cli/train_work.h"

#include <iostream>
#include <string>
#include <vector>

#include "tools/cli/command.h"
#include "tools/session/plan_here.h"
#include "tools/session/train_end.h"

namespace sluice::tools {
namespace {

Result<TrainSession::End> train(const TrainWork& work) {
  TrainSession::End end = TrainSession::End::kCompleted;
  SLUICE_RETURN_IF_ERROR(say_where_it_continues(work.started, [&]() -> Status {
    SLUICE_ASSIGN_OR_RETURN(end, work.started.session->train());
    return {};
  }));
  return end;
}

// Whether a plain --resume continues after the last step taken.
bool is_saved(const RunningTraining& started) {
  const auto newest = started.located->folder.newest();
  return newest.ok() && *newest && (*newest)->step == started.run->trainer().state().global_step;
}

}  // namespace

Result<int> train_and_finish(const TrainWork& work) {
  const RunningTraining& started = work.started;
  const auto ended = train(work);
  if (!ended.ok()) work.events.end("failed", ended.error().message());
  work.form.work_is_done();
  if (!ended.ok()) work.monitors.finish(work.interrupt);
  SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, ended);
  work.events.end(end == TrainSession::End::kCompleted ? "completed" : "interrupted");
  TrainSession& session = *started.session;
  session.print_totals(std::cout);
  work.monitors.finish(work.interrupt);
  if (started.planned.step && session.far_from_plan())
    judge_plan(started.run->config(), started.planned.step->machine);
  std::vector<std::string> missing = session.missing();
  write_last_files(started, {.notes = std::cerr, .results = std::cout}, missing);
  for (const std::string& sentence : missing) std::cerr << ("sluice: " + sentence + "\n");
  if (!missing.empty()) return kExitNotSaved;
  if (end == TrainSession::End::kCompleted && session.applied_nothing()) {
    std::cerr << ("sluice: " + std::string(kNothingApplied) + "\n");
    return kExitNothingApplied;
  }
  if (end == TrainSession::End::kCompleted) return 0;
  if (is_saved(started)) {
    std::cerr << "interrupted; --resume continues from here\n";
    return work.signal_exit_code;
  }
  std::cerr << "interrupted, and no step is saved; to start again: " << work.again << "\n";
  return kInterruptedExitCode;
}

}  // namespace sluice::tools
