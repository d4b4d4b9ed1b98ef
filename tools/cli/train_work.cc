#include "tools/cli/train_work.h"

#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/drive_names.h"
#include "engine/step/train_error.h"
#include "tools/cli/command.h"
#include "tools/cli/error_text.h"
#include "tools/cli/plan_here.h"

namespace sluice::tools {
namespace {

void write_trace(const TrainWork& work, std::vector<std::string>& missing) {
  if (work.run.trainer().state().global_step < work.trace->first_step) {
    std::cerr << "no trace was written: the run ended before step " << work.trace->first_step
              << "\n";
    return;
  }
  const std::string path = work.folder.file("trace.json");
  if (const Status written = work.run.write_trace(path); written.ok()) {
    std::cout << "trace: " << path
              << " (open it in ui.perfetto.dev, or give it to tools/trace_summary)\n";
  } else {
    missing.push_back("the trace was not written: " + written.error().message());
  }
}

// What is wanted once the last step is done: one file that cannot be written does not cost another.
// Notes in `missing` what could not be written.
void finish(const TrainWork& work, std::vector<std::string>& missing) {
  if (work.trace) write_trace(work, missing);
  if (work.weights.empty()) return;
  if (const Status saved = work.run.save_weights(work.weights, work.weight_dtype); saved.ok())
    std::cout << "weights: " << work.weights << "\n";
  else
    missing.push_back("the weights were not saved: " + saved.error().message());
}

// For a run that broke off in a step: which drives its state was on, and where it can continue.
// `repeats`: continuing from there leads to the same failure.
std::string after_a_failure(const RunFolder& folder, const config::Config& config, bool repeats) {
  std::set<std::string> drives;
  for (const auto& paths : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    for (const std::string& path : paths) drives.insert(path + " on " + aio::describe_drive(path));
  std::string text;
  for (const std::string& drive : drives)
    text += (text.empty() ? ". Its state was in " : ", ") + drive;
  if (repeats) text.clear();
  const auto newest = folder.newest();
  if (!newest.ok())
    return text + ". Which checkpoint is the newest cannot be determined now (" +
           newest.error().message() + ")" +
           (repeats ? "" : ": --resume continues from it once it can be read");
  if (!*newest) return text + ". There is no checkpoint yet";
  return text + ". The newest checkpoint is " + (*newest)->path +
         (repeats ? "" : ": --resume continues from there");
}

Result<TrainSession::End> train(const TrainWork& work) {
  const auto failed = [&](Error error, bool repeats) {
    work.session.finish_saves();
    return std::move(error).with_suffix(after_a_failure(work.folder, work.run.config(), repeats));
  };
  try {
    auto end = work.session.train(work.interrupt);
    if (end.ok()) return end;
    return failed(std::move(end).error(), false);
  } catch (const engine::NonFiniteGradient& error) {
    return failed(error_of(error), true);
  } catch (const std::exception& error) {
    return failed(error_of(error), false);
  }
}

// Whether a plain --resume continues after the last step that was taken.
bool is_saved(const TrainWork& work) {
  const auto newest = work.folder.newest();
  return newest.ok() && *newest && (*newest)->step == work.run.trainer().state().global_step;
}

}  // namespace

Result<int> train_and_finish(const TrainWork& work) {
  const auto ended = train(work);
  if (!ended.ok()) work.events.end("failed", ended.error().message());
  work.form.work_is_done();
  if (!ended.ok()) work.monitors.finish(work.interrupt);
  SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, ended);
  work.events.end(end == TrainSession::End::kCompleted ? "completed" : "interrupted");
  TrainSession& session = work.session;
  session.print_totals();
  work.monitors.finish(work.interrupt);
  if (work.planned != nullptr && session.far_from_plan())
    judge_plan(work.run.config(), work.planned->machine);
  std::vector<std::string> missing = session.missing();
  finish(work, missing);
  for (const std::string& sentence : missing) std::cerr << "sluice: " << sentence << "\n";
  if (!missing.empty()) return kExitNotSaved;
  if (end == TrainSession::End::kCompleted && session.applied_nothing()) {
    std::cerr << "sluice: no step was applied, so the weights are those that the run began with: "
                 "every gradient overflowed. Lower the loss scale (fp16.initial_scale_power, "
                 "fp16.loss_scale) or train in bf16\n";
    return kExitNothingApplied;
  }
  if (end == TrainSession::End::kCompleted) return 0;
  if (is_saved(work)) {
    std::cerr << "interrupted; --resume continues from here\n";
    return 0;
  }
  std::cerr << "interrupted, and no step is saved; to begin again: " << work.again << "\n";
  return kInterruptedExitCode;
}

}  // namespace sluice::tools
