#include "tools/session/train_end.h"

#include <ostream>
#include <set>
#include <utility>

#include "aio/drive_names.h"
#include "engine/step/train_error.h"
#include "tools/session/error_text.h"

namespace sluice::tools {
namespace {

void write_trace(const RunningTraining& started, const TrainOutputs& after,
                 std::vector<std::string>& missing) {
  const std::int64_t first_step = started.located->wanted.trace->first_step;
  if (started.run->trainer().state().global_step < first_step) {
    after.notes << "no trace was written: the run ended before step " << first_step << "\n";
    return;
  }
  const std::string path = started.located->folder.file("trace.json");
  if (const Status written = started.run->write_trace(path); written.ok()) {
    after.results << "trace: " << path
                  << " (open it in ui.perfetto.dev or with tools/trace_summary)\n";
  } else {
    missing.push_back("the trace was not written: " + written.error().message());
  }
}

// For a run that failed in a step: the drives of its state, and where it can continue. `repeats`:
// continuing from there would fail in the same way.
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
    return text + ". The newest checkpoint cannot be determined now (" + newest.error().message() +
           ")" + (repeats ? "" : ": --resume continues from it when it can be read");
  if (!*newest) return text + ". There is no checkpoint yet";
  return text + ". The newest checkpoint is " + (*newest)->path +
         (repeats ? "" : ": --resume continues from there");
}

}  // namespace

void write_last_files(const RunningTraining& started, const TrainOutputs& after,
                      std::vector<std::string>& missing) {
  const CheckedRequest& wanted = started.located->wanted;
  const std::string& weights = wanted.request.save_weights;
  if (wanted.trace) write_trace(started, after, missing);
  if (weights.empty()) return;
  if (const Status saved = started.run->save_weights(weights, wanted.weight_dtype); saved.ok())
    after.results << "weights: " << weights << "\n";
  else
    missing.push_back("the weights were not saved: " + saved.error().message());
}

Status say_where_it_continues(const RunningTraining& started,
                              const std::function<Status()>& steps) {
  const auto failed = [&](Error error, bool repeats) {
    started.session->finish_saves();
    return std::move(error).with_suffix(
        after_a_failure(started.located->folder, started.run->config(), repeats));
  };
  try {
    Status done = steps();
    if (done.ok()) return done;
    return failed(done.error(), false);
  } catch (const engine::NonFiniteGradient& error) {
    return failed(error_of(error), true);
  } catch (const std::exception& error) {
    return failed(error_of(error), false);
  }
}

}  // namespace sluice::tools
