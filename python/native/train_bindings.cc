// A run of a configuration, step by step, as in `sluice train`.
#include "python/native/tool_bindings.h"
// The include above must come first.
#include <pybind11/stl.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "engine/config/resolve.h"
#include "engine/run/training_run.h"
#include "tools/session/error_text.h"
#include "tools/session/plan_here.h"
#include "tools/session/train_end.h"
#include "tools/session/train_start.h"

namespace py = pybind11;

namespace sluice::tools {
namespace {

using engine::must_be;

// Whether Ctrl-C was pressed, or another Python signal handler raised. The exception is stored
// until the engine's call has ended, and raised then. Only Python's main thread gets signals.
class PythonSignals {
 public:
  bool heard() {
    const py::gil_scoped_acquire gil;
    if (raised_) return true;
    if (PyErr_CheckSignals() == 0) return false;
    raised_ = std::make_exception_ptr(py::error_already_set());
    return true;
  }
  void raise() {
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
  }

 private:
  std::exception_ptr raised_;
};

// The call that continues the run, with another value of `resume`.
std::string call_of(const std::string& resume, const std::string& more) {
  std::string text =
      "sluice.Run(..., resume=" + (resume.empty() ? std::string("True") : "\"" + resume + "\"");
  if (more == "--set-aside-later") text += ", set_aside_later=True";
  if (more.starts_with("--out")) text += ", out=\"NEW_FOLDER\"";
  return text + ")";
}

class PythonTraining {
 public:
  explicit PythonTraining(const TrainRequest& request) {
    const py::gil_scoped_release no_gil;
    watchdog_ = std::make_unique<aio::IoWatchdog>(aio::IoWatchdog::Options{});
    events_ = std::make_unique<RunEvents>();
    auto begun = begin(request);
    if (!begun.ok()) {
      const py::gil_scoped_acquire gil;
      signals_.raise();
      throw_error(begun.error());
    }
    started_ = *std::move(begun);
    started_->session->begin();
  }
  ~PythonTraining() {  // NOLINT(bugprone-exception-escape): the GIL can be given up
    const py::gil_scoped_release no_gil;
    if (started_ && !ended_) end_record("interrupted", "");
    started_.reset();
    events_.reset();
  }
  PythonTraining(const PythonTraining&) = delete;
  PythonTraining& operator=(const PythonTraining&) = delete;

  // Takes the next step; nullopt once all are done, or the run was stopped. A signal that came
  // meanwhile is raised after the step is saved and the run has ended.
  std::optional<engine::StepMetrics> next() {
    const std::lock_guard lock(mutex_);
    if (ended_) return std::nullopt;
    bool interrupted = false;
    bool done = false;
    const Status taken = guarded([&]() -> Status {
      done = !started_->session->has_steps();
      if (done) return finish(false);
      SLUICE_ASSIGN_OR_RETURN(interrupted, started_->session->take_step());
      return interrupted ? finish(true) : Status();
    });
    if (interrupted || !taken.ok()) {
      const py::gil_scoped_acquire gil;
      if (!taken.ok()) throw_error(taken.error());
      signals_.raise();
    }
    if (done) return std::nullopt;
    return started_->session->last();
  }

  // Ends the run as Ctrl-C does between two steps: saves the last step if checkpoints are
  // configured.
  void stop() {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    must_be(guarded([&]() -> Status {
      const bool is_early = started_->session->has_steps();
      if (is_early) SLUICE_RETURN_IF_ERROR(started_->session->save_last());
      return finish(is_early);
    }));
  }

  // Releases memory, drives and the folder.
  void close() {
    const std::lock_guard lock(mutex_);
    started_.reset();
    events_.reset();
  }

  // The messages since the last call, as lines for people.
  std::string said() {
    const std::lock_guard lock(mutex_);
    return take(output_);
  }
  std::vector<std::string> missing() const {
    const std::lock_guard lock(mutex_);
    return missing_;
  }
  bool has_ended() const { return ended_; }

  std::string folder() const { return folder_; }
  const std::string& config() const { return config_; }
  std::int64_t steps() const { return steps_; }
  std::optional<double> predicted_step_s() const { return predicted_step_s_; }
  std::uint64_t tokens_per_step() const { return tokens_per_step_; }
  std::int64_t begun_after() const { return begun_after_; }

 private:
  Result<RunningTraining> begin(const TrainRequest& request) {
    try {
      const engine::RankContext alone;
      SLUICE_ASSIGN_OR_RETURN(CheckedRequest wanted, check_training(request, alone, *watchdog_));
      const TrainEnvironment environment{.context = alone,
                                         .watchdog = *watchdog_,
                                         .stop = [this] { return signals_.heard(); },
                                         .command = call_of,
                                         .notices = output_,
                                         .results = output_,
                                         .events = *events_,
                                         .shows_progress = false};
      SLUICE_ASSIGN_OR_RETURN(auto located, locate_training(std::move(wanted), environment));
      SLUICE_ASSIGN_OR_RETURN(RunningTraining started,
                              begin_training(std::move(located), environment));
      folder_ = started.located->folder.path();
      config_ = config::to_json(started.run->config());
      steps_ = started.run->config().run.steps;
      tokens_per_step_ = started.run->tokens_per_step();
      begun_after_ = started.run->trainer().state().global_step;
      if (started.planned.step) predicted_step_s_ = started.planned.step->step_s;
      return started;
    } catch (const py::builtin_exception&) {
      throw;
    } catch (const std::exception& error) {
      return error_of(error);
    }
  }

  // Takes steps; after an error the run is over.
  template <typename Steps>
  Status guarded(const Steps& steps) {
    const Status done = say_where_it_continues(*started_, [&]() -> Status {
      try {
        return steps();
      } catch (const engine::NonFiniteGradient&) {
        is_not_finite_ = true;
        throw;
      }
    });
    if (!done.ok() && !ended_) end_record("failed", done.error().message());
    return done;
  }

  Status finish(bool interrupted) {
    SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, started_->session->finish(interrupted));
    const bool completed = end == TrainSession::End::kCompleted;
    end_record(completed ? "completed" : "interrupted", "");
    started_->session->print_totals(output_);
    if (started_->planned.step && started_->session->far_from_plan())
      judge_plan(started_->run->config(), started_->planned.step->machine);
    missing_ = started_->session->missing();
    write_last_files(*started_, {.notes = output_, .results = output_}, missing_);
    if (completed && started_->session->applied_nothing())
      return Error(ErrorCode::kInvalidArgument, kNothingApplied);
    return {};
  }

  void end_record(const char* how, const std::string& reason) {
    ended_ = true;
    events_->end(how, reason);
  }

  [[noreturn]] void throw_error(const Error& error) const {
    if (is_not_finite_) throw engine::NonFiniteGradient(error.message());
    if (error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported ||
        error.code() == ErrorCode::kAlreadyExists)
      throw engine::RefusedError(error.message());
    throw engine::TrainError(error.message());
  }

  static std::string take(std::ostringstream& stream) {
    std::string text = stream.str();
    stream.str("");
    return text;
  }

  // A thread that waits for it has released the GIL, which its holder may need.
  mutable std::mutex mutex_;
  PythonSignals signals_;
  std::ostringstream output_;
  std::unique_ptr<aio::IoWatchdog> watchdog_;
  std::unique_ptr<RunEvents> events_;
  std::optional<RunningTraining> started_;  // nullopt: closed
  bool ended_ = false;
  bool is_not_finite_ = false;
  std::vector<std::string> missing_;
  std::string folder_;
  std::string config_;  // resolved, as JSON
  std::int64_t steps_ = 0;
  std::int64_t begun_after_ = 0;
  std::uint64_t tokens_per_step_ = 0;
  std::optional<double> predicted_step_s_;
};

TrainRequest request_of(const ConfigOptions& config, const py::dict& more) {
  TrainRequest request;
  request.config = config;
  const auto take = [&](const char* key, auto& value) {
    if (more.contains(key)) value = more[key].cast<std::decay_t<decltype(value)>>();
  };
  take("out", request.out);
  take("steps", request.steps);
  take("epochs", request.epochs);
  take("overwrite", request.overwrite);
  take("resume", request.resume);
  take("set_aside_later", request.set_aside_later);
  take("trace", request.trace);
  take("save_weights", request.save_weights);
  take("dtype", request.dtype);
  take("force", request.force);
  take("init_from", request.init_from);
  take("any_tokenizer", request.any_tokenizer);
  return request;
}

}  // namespace

void define_training(py::module_& module) {
  py::class_<PythonTraining>(module, "Training")
      .def(py::init([](const ConfigOptions& config, const py::dict& more) {
             return std::make_unique<PythonTraining>(request_of(config, more));
           }),
           py::arg("config"), py::arg("more"))
      .def("next",
           [](PythonTraining& run) -> py::object {
             std::optional<engine::StepMetrics> metrics;
             {
               const py::gil_scoped_release no_gil;
               metrics = run.next();
             }
             return metrics ? py::object(metrics_dict(*metrics)) : py::none();
           })
      .def("stop", &PythonTraining::stop, engine::NoGil())
      .def("close", &PythonTraining::close, engine::NoGil())
      .def("said", &PythonTraining::said, engine::NoGil())
      .def("missing", &PythonTraining::missing, engine::NoGil())
      .def_property_readonly("has_ended", &PythonTraining::has_ended)
      .def_property_readonly("folder", &PythonTraining::folder)
      .def_property_readonly("config", &PythonTraining::config)
      .def_property_readonly("steps", &PythonTraining::steps)
      .def_property_readonly("begun_after", &PythonTraining::begun_after)
      .def_property_readonly("tokens_per_step", &PythonTraining::tokens_per_step)
      .def_property_readonly("predicted_step_s", &PythonTraining::predicted_step_s);
}

}  // namespace sluice::tools
