#include "python/native/module_record.h"

#include "python/native/tool_bindings.h"
// The include above must come first.
#include <pybind11/stl.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/config/stored_config.h"
#include "engine/observe/event_log.h"

namespace py = pybind11;

namespace sluice::tools {
namespace {

std::string metrics_path(const std::string& directory) { return directory + "/metrics.jsonl"; }

// Refuses to overwrite another run's results by accident.
Status check_folder(const std::string& directory, std::int64_t step) {
  if (step > 0) return {};
  const auto there = engine::read_metrics(metrics_path(directory));
  if (!there.ok() && there.error().code() == ErrorCode::kNotFound) return {};
  if (!there.ok()) return there.error();
  if (there->empty()) return {};
  return Error(ErrorCode::kAlreadyExists,
               directory + " has a run of " + std::to_string(there->back().step) +
                   " steps: load_checkpoint() continues it; or choose another run_dir, or remove "
                   "that folder");
}

Status write_config(engine::ModuleRun& run, const config::Resolved& resolved,
                    const std::string& directory) {
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  SLUICE_ASSIGN_OR_RETURN(const std::string text, config::run_folder_json(resolved, here));
  const std::string path = directory + "/config.json";
  return aio::write_small_file(run.file_queue(), path, text + "\n");
}

// 0: the number of steps is not configured.
std::int64_t steps_of(const config::Resolved& resolved) {
  for (const config::KeyReport& report : resolved.reports)
    if (report.path == "run.steps" && report.given) return resolved.config.run.steps;
  return 0;
}

}  // namespace

Result<std::unique_ptr<ModuleRecord>> ModuleRecord::begin(engine::ModuleRun& run,
                                                          const config::Resolved& resolved,
                                                          const std::string& directory) {
  const std::int64_t step = run.train_state().global_step;
  SLUICE_RETURN_IF_ERROR(check_folder(directory, step));
  std::unique_ptr<ModuleRecord> record(new ModuleRecord(run, directory));
  SLUICE_RETURN_IF_ERROR(engine::check_run_directory(run.file_queue(), directory));
  SLUICE_RETURN_IF_ERROR(engine::mark_run_directory(run.file_queue(), directory));
  SLUICE_RETURN_IF_ERROR(write_config(run, resolved, directory));
  SLUICE_ASSIGN_OR_RETURN(record->log_,
                          engine::MetricsLog::resume(metrics_path(directory), step, "",
                                                     resolved.config.run.log_part_bytes()));
  if (record->log_->cut_lines() > 0)
    log::info("metrics of later steps, " + std::to_string(record->log_->cut_lines()) +
              " lines, are now in " + record->log_->cut_path());
  if (record->log_->last_kept() && record->log_->last_kept()->tokens_seen)
    record->tokens_seen_ = *record->log_->last_kept()->tokens_seen;
  std::optional<PlannedStep> planned;
  if (run.predicted_step_s())
    planned = PlannedStep{.step_s = *run.predicted_step_s(), .prediction = run.prediction()};
  const std::vector<TierUsage> tiers = tiers_of(run.plan());
  const engine::ModuleLayout& layout = run.layout();
  record->events_.begin(
      directory + "/events.jsonl",
      {.step = step,
       .steps = steps_of(resolved),
       .family = "module",
       .parameters = layout.trained().parameter_elements() + layout.frozen().parameter_elements(),
       .trained_parameters = layout.trained().parameter_elements(),
       .resolved = resolved,
       .tiers = tiers,
       .planned = planned ? &*planned : nullptr});
  return record;
}

void ModuleRecord::step(const ModuleStep& step) {
  constexpr double kMs = 1000;
  const engine::Resources::Traffic now = run_.traffic();
  const engine::Resources::Memory memory = run_.memory();
  const engine::GpuUse gpu = run_.take_gpu_use();
  const double took_s = 1e-9 * static_cast<double>(step.end_ns - step.begin_ns);
  tokens_seen_ += step.tokens;
  last_ = {.step = step.step,
           .tokens_seen = tokens_seen_,
           .unix_s = engine::unix_seconds(),
           .loss = step.outcome.loss,
           .lr = step.outcome.learning_rate,
           .grad_norm = step.outcome.grad_norm,
           .loss_scale = step.outcome.loss_scale,
           .skipped = step.outcome.skipped,
           .tokens_per_s = took_s > 0 ? static_cast<double>(step.tokens) / took_s : 0,
           .step_ms = kMs * took_s,
           .forward_ms = kMs * step.forward_s,
           .backward_ms = kMs * step.backward_s,
           .update_ms = kMs * step.update_s,
           .update_exposed_ms = kMs * step.update_s,
           .nvme_read_bytes = now.nvme_read_bytes - before_.nvme_read_bytes,
           .nvme_write_bytes = now.nvme_write_bytes - before_.nvme_write_bytes,
           .h2d_bytes = now.h2d_bytes - before_.h2d_bytes,
           .d2h_bytes = now.d2h_bytes - before_.d2h_bytes,
           .gpu_peak_bytes = memory.gpu_peak_bytes,
           .gpu_utilization_percent = gpu.utilization_percent,
           .gpu_power_watts = gpu.power_watts,
           .gpu_throttled_percent = gpu.throttled_percent,
           .host_pinned_bytes = memory.pinned_bytes,
           .host_rss_bytes = memory.resident_bytes};
  before_ = now;
  const Status written = log_->append(last_);
  if (!written.ok())
    log::warning_once("metrics wait", "metrics are kept in memory, and training continues: " +
                                          written.error().message());
  events_.after_step(step.step);
}

void ModuleRecord::end(const std::string& how, const std::string& reason) {
  const Status flushed = log_->flush();
  if (!flushed.ok()) log::warning("metrics are missing: " + flushed.error().message());
  events_.end(how, reason);
}

Status ModuleRecord::write_trace() {
  run_.trace().end_steps(SteadyClock().now_ns());
  return run_.trace().write_json(directory_ + "/trace.json");
}

std::vector<std::string> ModuleRecord::missing() const {
  std::vector<std::string> sentences;
  const std::int64_t lines = log_->waiting_lines() + log_->lost_lines();
  if (lines > 0)
    sentences.push_back("the metrics of " + std::to_string(lines) + " steps are missing in " +
                        log_->path() + ", because they could not be written");
  return sentences;
}

void define_module_records(py::module_& module) {
  using engine::must_be;
  using engine::NoGil;
  py::class_<ModuleRecord>(module, "Record")
      .def(py::init([](engine::ModuleRun& run, const engine::ResolvedConfig& config,
                       const std::string& directory) {
             config::Resolved resolved = config.resolved;
             resolved.config = config.config;
             resolved.config.run.dir = directory;
             return engine::value_of(ModuleRecord::begin(run, resolved, directory));
           }),
           py::arg("run"), py::arg("config"), py::arg("directory"), py::keep_alive<1, 2>(), NoGil())
      .def(
          "step",
          [](ModuleRecord& record, const engine::StepOutcome& outcome, std::int64_t step,
             std::uint64_t tokens, std::int64_t begin_ns, std::int64_t end_ns, double forward_s,
             double backward_s, double update_s) {
            record.step({.outcome = outcome,
                         .step = step,
                         .tokens = tokens,
                         .begin_ns = begin_ns,
                         .end_ns = end_ns,
                         .forward_s = forward_s,
                         .backward_s = backward_s,
                         .update_s = update_s});
          },
          py::arg("outcome"), py::arg("step"), py::arg("tokens"), py::arg("begin_ns"),
          py::arg("end_ns"), py::arg("forward_s"), py::arg("backward_s"), py::arg("update_s"),
          NoGil())
      .def("checkpoint", &ModuleRecord::checkpoint, NoGil())
      .def("end", &ModuleRecord::end, py::arg("how"), py::arg("reason") = "", NoGil())
      .def(
          "write_trace", [](ModuleRecord& record) { must_be(record.write_trace()); }, NoGil())
      .def_property_readonly("last",
                             [](const ModuleRecord& record) { return metrics_dict(record.last()); })
      .def("missing", &ModuleRecord::missing);
}

}  // namespace sluice::tools
