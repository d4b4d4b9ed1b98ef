#include "tools/cli/train_work.h"

#include <iostream>
#include <set>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/drive_names.h"
#include "engine/train/train_error.h"
#include "tools/cli/command.h"
#include "tools/cli/plan_here.h"

namespace sluice::tools {
namespace {

// What is wanted once the last step is done: one file that cannot be written costs no other. Says
// in `missing` what could not.
void finish(const TrainWork& work, std::vector<std::string>& missing) {
  if (work.traces) {
    work.run.trace().end_steps(SteadyClock().now_ns());
    const std::string path = work.folder.file("trace.json");
    if (const Status written = work.run.trace().write_json(path); written.ok()) {
      std::cout << "trace: " << path
                << " (open it in ui.perfetto.dev, or give it to tools/trace_summary)\n";
    } else {
      missing.push_back("the trace was not written: " + written.error().message());
    }
  }
  if (work.weights.empty()) return;
  if (const Status saved = work.run.save_weights(work.weights, work.weight_dtype); saved.ok())
    std::cout << "weights: " << work.weights << "\n";
  else
    missing.push_back("the weights were not saved: " + saved.error().message());
}

// For a run that broke off in a step: which drives its state was on, and where it can go on.
std::string after_a_failure(const RunFolder& folder, const config::Config& config) {
  std::set<std::string> drives;
  for (const auto& paths : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    for (const std::string& path : paths) drives.insert(path + " on " + aio::describe_drive(path));
  std::string text;
  for (const std::string& drive : drives)
    text += (text.empty() ? ". Its state was in " : ", ") + drive;
  const auto newest = folder.newest();
  if (!newest.ok())
    return text + ". Which checkpoint is the newest cannot be told now (" +
           newest.error().message() + "): --resume goes on from it once it can be read";
  if (*newest)
    return text + ". The newest checkpoint is " + (*newest)->path + ": --resume goes on from there";
  return text + ". There is no checkpoint yet";
}

Result<TrainSession::End> train(const TrainWork& work) {
  const RunFolder& folder = work.folder;
  const config::Config& config = work.run.config();
  try {
    auto end = work.session.train(work.interrupt);
    if (end.ok()) return end;
    work.session.finish_saves();
    return std::move(end).error().with_suffix(after_a_failure(folder, config));
  } catch (const engine::NonFiniteGradient& error) {
    work.session.finish_saves();
    const auto newest = folder.newest();
    const bool saved = newest.ok() && *newest;
    throw engine::TrainError(
        std::string(error.what()) +
        (saved ? ". The newest checkpoint is " + (*newest)->path : ". There is no checkpoint yet"));
  } catch (const engine::TrainError& error) {
    work.session.finish_saves();
    throw engine::TrainError(error.what() + after_a_failure(folder, config));
  }
}

}  // namespace

Result<int> train_and_finish(const TrainWork& work) {
  SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, train(work));
  TrainSession& session = work.session;
  session.print_totals();
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
  if (!work.run.plan().saves.saves()) return kInterruptedExitCode;
  std::cerr << "interrupted; --resume goes on from here\n";
  return 0;
}

}  // namespace sluice::tools
