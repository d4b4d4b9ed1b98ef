#include "tools/session/train_session.h"

#include <algorithm>
#include <cerrno>
#include <iomanip>
#include <numeric>
#include <ostream>
#include <sstream>
#include <utility>

#include "aio/clock.h"
#include "aio/drive_names.h"
#include "aio/log.h"
#include "aio/text.h"
#include "aio/units.h"
#include "engine/profile/step_flops.h"
#include "engine/step/train_error.h"
#include "tools/session/flops_report.h"

namespace sluice::tools {
namespace {

constexpr int kCalmSteps = 10;  // steps without a waiting line

using engine::StepMetrics;
using engine::TrainingRun;

void count_traffic(const TrainingRun::Traffic& before, const TrainingRun::Traffic& now,
                   StepMetrics& metrics) {
  metrics.nvme_read_bytes = now.nvme_read_bytes - before.nvme_read_bytes;
  metrics.nvme_write_bytes = now.nvme_write_bytes - before.nvme_write_bytes;
  metrics.h2d_bytes = now.h2d_bytes - before.h2d_bytes;
  metrics.d2h_bytes = now.d2h_bytes - before.d2h_bytes;
}

void take_experts(const engine::ExpertFigures& figures, StepMetrics& metrics) {
  metrics.balance_loss = figures.balance_loss;
  for (std::int64_t layer = 0; layer < figures.layers; ++layer) {
    const auto first = figures.rows.begin() + layer * figures.experts;
    const auto end = first + figures.experts;
    const auto rows = static_cast<double>(std::accumulate(first, end, std::int64_t{0}));
    metrics.busiest_expert.push_back(static_cast<double>(*std::max_element(first, end)) *
                                     static_cast<double>(figures.experts) / rows);
    metrics.idle_experts.push_back(std::count(first, end, 0));
  }
}

// Lines of schema 1 lack the number of tokens; their steps had the same size as today's.
std::uint64_t tokens_before(const engine::MetricsLog& log, TrainingRun& run) {
  if (log.last_kept() && log.last_kept()->tokens_seen) return *log.last_kept()->tokens_seen;
  return static_cast<std::uint64_t>(run.trainer().state().global_step) * run.tokens_per_step();
}

std::string seconds(std::int64_t ns) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(ns) * 1e-9 << " s";
  return text.str();
}

std::string describe(const engine::SavedCheckpoint& saved) {
  std::string text = "saved " + saved.path + " (" + format_bytes(saved.bytes);
  if (saved.in_place_bytes > 0) text += ", and " + format_bytes(saved.in_place_bytes) + " in place";
  text += "; training paused for " + seconds(saved.stopped_ns);
  if (saved.took_ns > saved.stopped_ns) text += ", on the disk after " + seconds(saved.took_ns);
  for (std::size_t i = 0; i < saved.removed.size(); ++i)
    text += (i == 0 ? "; run.keep_last removed " : ", ") + saved.removed[i];
  return text + ")";
}

// The text after "because"; with several ranks the error names the rank and the host.
std::string why_not_saved(const engine::SavedCheckpoint& saved, bool has_other_ranks) {
  const Error& error = saved.status.error();
  if (saved.directory_lost) return "the run's folder was moved or unmounted";
  if (has_other_ranks) return "of " + error.message();
  if (error.error_number() == EFBIG) return "the file size limit was reached (ulimit -f)";
  return error.code() == ErrorCode::kNoSpace ? "the disk was full" : "the disk was read-only";
}

// For a terminal: without control characters, and cut.
std::string one_line(const std::string& text) {
  std::size_t most = 200;
  const auto byte = [&text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  if (text.size() > most)  // never within a character
    while ((byte(most) & 0xc0) == 0x80) --most;
  std::string line;
  for (std::size_t at = 0; at < std::min(most, text.size()); ++at) {
    const bool is_c1 = byte(at) == 0xc2 && at + 1 < text.size() && byte(at + 1) < 0xa0;
    line += byte(at) < ' ' || byte(at) == 0x7f || is_c1 ? ' ' : text[at];
    if (is_c1) ++at;  // control characters of two bytes
  }
  return text.size() > most ? line + "..." : line;
}

void warn_unless_pruned(const Status& pruned) {
  if (!pruned.ok()) log::warning("older checkpoints were not removed: " + pruned.error().message());
}

}  // namespace

TrainSession::TrainSession(const Parts& parts, const engine::SavePlan& saves, std::int64_t steps)
    : parts_(parts),
      steps_(steps),
      progress_(
          {.total_steps = steps,
           .plain_every_steps = std::max<std::int64_t>(parts.run->config().run.log_every_steps, 1),
           .breakdown = parts.run->config().wall_clock_breakdown,
           .silent = !parts.shows_progress}),
      evaluations_(parts.run->config().early_stopping,
                   parts.evaluations.value_or(engine::StoredEvaluations{})),
      keeps_best_(saves.best),
      saves_at_end_(saves.at_end),
      flops_of_token_(engine::trained_flops(
          engine::flops_of_token(parts.run->model(), parts.run->config().data.sequence_tokens))),
      tokens_seen_(tokens_before(*parts.log, *parts.run)),
      save_clock_(saves, steps, SteadyClock().now_ns()),
      stop_(saves.stop) {}

Result<TrainSession::End> TrainSession::train() {
  bool interrupted = parts_.stop();
  if (!interrupted) begin();
  while (has_steps() && !interrupted) {
    SLUICE_ASSIGN_OR_RETURN(interrupted, take_step());
  }
  return finish(interrupted);
}

void TrainSession::begin() {
  if (evaluations_.stops()) {  // the run that it continues has stopped
    report_early_stop();
    *parts_.notices << "a larger early_stopping.patience, or 0, continues it\n";
  }
  if (parts_.checkpoints != nullptr && has_steps()) warn_unless_pruned(parts_.checkpoints->prune());
}

bool TrainSession::has_steps() const {
  return parts_.run->trainer().state().global_step < steps_ && !evaluations_.stops();
}

Result<bool> TrainSession::take_step() {
  const std::int64_t step = parts_.run->trainer().state().global_step + 1;
  one_step(step);
  compare_with_grace();
  const bool interrupted = parts_.stop();
  if (saves_after(step, interrupted)) SLUICE_RETURN_IF_ERROR(save());
  SLUICE_RETURN_IF_ERROR(report_saves());
  if (evaluations_.stops()) report_early_stop();
  return interrupted;
}

Status TrainSession::save_last() {
  if (parts_.checkpoints == nullptr || taken_steps_ == 0 || saved_step_ == last_.step) return {};
  SLUICE_RETURN_IF_ERROR(save());
  return report_saves();
}

Result<TrainSession::End> TrainSession::finish(bool interrupted) {
  if (parts_.checkpoints != nullptr) parts_.checkpoints->wait();
  SLUICE_RETURN_IF_ERROR(report_saves());
  const Status flushed = parts_.log->flush();  // a removed checkpoint may have freed space
  if (flushed.ok()) calm_steps_ = kCalmSteps;
  report_metrics(flushed);
  parts_.run->trainer().drain();
  return interrupted ? End::kInterrupted : End::kCompleted;
}

void TrainSession::finish_saves() {
  if (parts_.checkpoints == nullptr) return;
  parts_.checkpoints->wait();
  const Status told = report_saves();
  if (!told.ok()) log::warning(told.error().message());
}

void TrainSession::print_totals(std::ostream& out) {
  progress_.clear();
  out << totals_.closing_table();
}

void TrainSession::one_step(std::int64_t step) {
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  parts_.run->trace().begin_step(step, begin_ns);
  const TrainingRun::Traffic before = parts_.run->traffic();
  if (parts_.checkpoints != nullptr)
    parts_.run->expect_save(
        save_clock_.is_due(step, begin_ns + static_cast<std::int64_t>(last_.step_ms * 1e6)));
  const engine::StepOutcome outcome = parts_.run->step();
  if (!outcome.warning.empty()) {
    progress_.clear();
    log::warning(outcome.warning);
  }
  tokens_seen_ += parts_.run->tokens_per_step();
  const std::int64_t took_ns = clock.now_ns() - begin_ns;
  StepMetrics metrics = metrics_of(step, outcome, took_ns);
  count_traffic(before, parts_.run->traffic(), metrics);
  if (!outcome.skipped) metrics.unit_hashes = parts_.run->trainer().unit_hashes();
  scores_ = {.loss = metrics.loss};
  is_lowest_ = false;
  if (evaluates_after(step)) evaluate(metrics);
  if (keeps_best_ || parts_.run->config().early_stopping.patience > 0)
    scores_.evaluations = evaluations_.made();
  totals_.add(metrics);
  warn_if_nothing_is_learnt(metrics);
  if (parts_.shows_progress) progress_.update(metrics);
  report_metrics(parts_.log->append(metrics));
  parts_.events->after_step(step);
  if (parts_.after_step) parts_.after_step(metrics);
  report_flops(step, outcome, took_ns);
  make_samples(step);
  ++taken_steps_;
  if (outcome.skipped) ++skipped_steps_;
  last_ = std::move(metrics);
}

void TrainSession::evaluate(StepMetrics& metrics) {
  progress_.clear();
  metrics.val_loss = scores_.validation_loss = parts_.run->evaluate();
  is_lowest_ = evaluations_.add(metrics.step, *metrics.val_loss);
  *parts_.notices << "step " << metrics.step << "  validation loss " << *metrics.val_loss << "\n";
}

// A tokenizer that fails costs the texts, not the run.
void TrainSession::make_samples(std::int64_t step) {
  const config::Config& config = parts_.run->config();
  const std::int64_t every =
      config.samples.every_steps > 0 ? config.samples.every_steps : config.run.eval_every_steps;
  if (!parts_.make_samples || config.samples.prompts.empty()) return;
  if (step != steps_ && (every == 0 || step % every != 0)) return;
  const SteadyClock clock;
  const engine::TraceScope span(parts_.run->trace(), clock, engine::TraceTrack::kRun, "samples",
                                {"step", step});
  progress_.clear();
  const auto texts = parts_.make_samples(*parts_.run, parts_.stop);
  if (!texts.ok()) {
    log::warning("sample texts of step " + std::to_string(step) +
                 " are missing: " + texts.error().message());
    return;
  }
  for (const SampleText& text : *texts) {
    parts_.events->sample(step, text);
    *parts_.notices << "step " << step << "  sample  " << one_line(text.prompt + text.text) << "\n";
  }
}

void TrainSession::report_early_stop() {
  const engine::StoredEvaluations& made = evaluations_.made();
  std::string text = "stopped early: the validation loss has not improved for " +
                     std::to_string(made.without_improvement) +
                     (made.without_improvement == 1 ? " evaluation" : " evaluations") +
                     " (early_stopping.patience)";
  if (made.lowest_loss)
    text += "; the lowest is " + significant(*made.lowest_loss) + ", after step " +
            std::to_string(made.lowest_step);
  progress_.clear();
  *parts_.notices << text << "\n";
  parts_.events->early_stop(made, text);
}

void TrainSession::warn_if_nothing_is_learnt(const StepMetrics& metrics) {
  if (!totals_.learns_nothing()) return;
  progress_.clear();
  log::warning_once(
      "gradient norm 0",
      "the gradient norm has been exactly 0 for " +
          std::to_string(engine::RunTotals::kStepsAtNorm0) + " steps, up to step " +
          std::to_string(metrics.step) +
          ": the model learns nothing. Its weights may have grown too large because of a high "
          "learning rate (optimizer.params.lr), or the data may have no tokens to train on: stop, "
          "and start again from an earlier checkpoint with a lower rate");
}

void TrainSession::compare_with_limit(double flops_per_s) {
  limit_flops_per_s_ = flops_per_s;
  totals_.compare_with_limit(flops_per_s * parts_.ranks);
}

// Writes the profile after step flops_profiler.profile_step. A failure to write it does not end
// training.
void TrainSession::report_flops(std::int64_t step, const engine::StepOutcome& outcome,
                                std::int64_t took_ns) {
  const config::FlopsProfiler& wanted = parts_.run->config().flops_profiler;
  if (!wanted.enabled || step != wanted.step) return;
  engine::PassTotals passes(parts_.run->model().units());
  passes.add_step(parts_.run->trainer().pass_spans());
  engine::FlopsProfile profile =
      flops_profile_of(*parts_.run, parts_.ranks, std::move(passes), limit_flops_per_s_);
  profile.step = step;
  profile.step_s = static_cast<double>(took_ns) * 1e-9;
  profile.update_s = static_cast<double>(outcome.times.update_ns) * 1e-9;
  profile.update_exposed_s = static_cast<double>(outcome.times.update_exposed_ns) * 1e-9;
  progress_.clear();
  const Status written =
      write_flops_profile(wanted, profile, *parts_.run->drives().saves, *parts_.results);
  if (!written.ok()) log::warning("the FLOPs profile is missing: " + written.error().message());
}

// With a dynamic loss scale, a short resumed run may find that all of its steps overflow.
bool TrainSession::applied_nothing() const {
  const bool adapts = parts_.run->config().fp16.static_loss_scale == 0;
  return taken_steps_ > 0 && skipped_steps_ == taken_steps_ &&
         (!adapts || parts_.run->trainer().state().applied_step == 0);
}

// Warns once when lines begin to wait, and once when they no longer do: a full disk accepts a line
// occasionally, when a failed save has freed some space.
void TrainSession::report_metrics(const Status& written) {
  if (parts_.log->lost_lines() > 0) {
    log::warning_once("metrics are lost",
                      "the memory for metrics that could not yet be written is full: " +
                          parts_.log->path() + ": metrics of later steps are lost");
  }
  if (!written.ok()) {
    calm_steps_ = 0;
    if (std::exchange(metrics_wait_, true)) return;
    progress_.clear();
    log::warning("metrics are kept in memory, and training continues: " +
                 written.error().message());
  } else if (metrics_wait_ && ++calm_steps_ >= kCalmSteps) {
    metrics_wait_ = false;
    progress_.clear();
    log::warning(parts_.log->path() + " can be written again, and the waiting steps were added");
  }
}

std::vector<std::string> TrainSession::missing() const {
  std::vector<std::string> sentences;
  if (failed_saves_ > 0) {
    sentences.push_back((failed_saves_ == 1 ? std::string("1 checkpoint is")
                                            : std::to_string(failed_saves_) + " checkpoints are") +
                        " missing, because " + why_not_saved_);
  }
  const std::int64_t steps = parts_.log->waiting_lines() + parts_.log->lost_lines();
  if (steps > 0) {
    sentences.push_back("the metrics of " +
                        (steps == 1 ? std::string("1 step") : std::to_string(steps) + " steps") +
                        " are missing in " + parts_.log->path() +
                        ", because they could not be written");
  }
  if (const std::int64_t events = parts_.events->lost_events(); events > 0) {
    sentences.push_back(std::to_string(events) +
                        " events are missing in events.jsonl, because they could not be written");
  }
  return sentences;
}

// If no plan gives the step time, the faster of the first two steps does, since the first one
// includes warm-up.
void TrainSession::compare_with_grace() {
  if (parts_.checkpoints == nullptr || stop_.step_s) return;
  const double step_s = last_.step_ms / 1e3;
  if (!first_step_s_) {
    first_step_s_ = step_s;
    return;
  }
  stop_.step_s = std::min(*first_step_s_, step_s);
  if (stop_.seconds() <= engine::kUsualGraceS) return;
  progress_.clear();
  *parts_.notices << engine::stop_sentence(stop_) << "\n";
}

bool TrainSession::evaluates_after(std::int64_t step) const {
  const std::int64_t every = parts_.run->config().run.eval_every_steps;
  return parts_.run->has_validation() && (step == steps_ || (every > 0 && step % every == 0));
}

bool TrainSession::saves_after(std::int64_t step, bool interrupted) const {
  return parts_.checkpoints != nullptr &&
         (interrupted || (is_lowest_ && keeps_best_) || (evaluations_.stops() && saves_at_end_) ||
          save_clock_.is_due(step, SteadyClock().now_ns()));
}

Status TrainSession::save() {
  progress_.clear();
  const SteadyClock clock;
  const engine::TraceScope span(parts_.run->trace(), clock, engine::TraceTrack::kRun, "checkpoint",
                                {"step", parts_.run->trainer().state().global_step});
  SLUICE_RETURN_IF_ERROR(parts_.checkpoints->save(scores_));
  save_clock_.save_began();
  saved_step_ = last_.step;
  return {};
}

Status TrainSession::report_saves() {
  if (parts_.checkpoints == nullptr) return {};
  for (const engine::SavedCheckpoint& saved : parts_.checkpoints->finished()) {
    progress_.clear();
    save_clock_.save_ended(SteadyClock().now_ns());
    parts_.events->checkpoint(saved);
    if (saved.status.ok()) {
      *parts_.notices << describe(saved) << "\n";
      warn_unless_pruned(saved.pruned);
      continue;
    }
    SLUICE_RETURN_IF_ERROR(report_failure(saved));
  }
  return {};
}

// A full disk or a missing folder costs the checkpoint; any other failure ends the run.
Status TrainSession::report_failure(const engine::SavedCheckpoint& saved) {
  Error error = saved.status.error();
  const std::string name = "the checkpoint of step " + std::to_string(saved.step);
  const bool is_full = error.code() == ErrorCode::kNoSpace;
  if (!is_full && error.code() != ErrorCode::kReadOnly && !saved.directory_lost) {
    return std::move(error).with_context(name + ", " + saved.path + " on " +
                                         aio::describe_drive(saved.path));
  }
  ++failed_saves_;
  why_not_saved_ = why_not_saved(saved, parts_.run->has_other_ranks());
  log::warning(name + " was not saved: " + error.message() + ". Training continues");
  return {};
}

StepMetrics TrainSession::metrics_of(std::int64_t step, const engine::StepOutcome& outcome,
                                     std::int64_t took_ns) const {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  StepMetrics metrics;
  metrics.step = step;
  metrics.tokens_seen = tokens_seen_;
  metrics.unix_s = engine::unix_seconds();
  metrics.loss = outcome.loss;
  take_experts(outcome.experts, metrics);
  metrics.lr = outcome.learning_rate;
  metrics.grad_norm = outcome.grad_norm;
  metrics.loss_scale = outcome.loss_scale;
  metrics.skipped = outcome.skipped;
  metrics.step_ms = ms(took_ns);
  metrics.tokens_per_s =
      static_cast<double>(parts_.run->tokens_per_step()) / (static_cast<double>(took_ns) * 1e-9);
  metrics.tflops_per_s = 1e-12 * flops_of_token_ * metrics.tokens_per_s;
  metrics.forward_ms = ms(outcome.times.forward_ns);
  metrics.backward_ms = ms(outcome.times.backward_ns);
  metrics.update_ms = ms(outcome.times.update_ns);
  metrics.update_exposed_ms = ms(outcome.times.update_exposed_ns);
  if (outcome.times.passes && parts_.run->config().wall_clock_breakdown) {
    const auto phase = [&](engine::PassPhase which) {
      return ms((*outcome.times.passes)[static_cast<std::size_t>(which)]);
    };
    metrics.recompute_ms = phase(engine::PassPhase::kRecompute);
    metrics.await_params_ms = phase(engine::PassPhase::kAwaitParams);
    metrics.await_inputs_ms = phase(engine::PassPhase::kAwaitInputs);
  }
  const engine::TrainingRun::Memory memory = parts_.run->memory();
  metrics.gpu_peak_bytes = memory.gpu_peak_bytes;
  const engine::GpuUse gpu = parts_.run->gpu_use();
  metrics.gpu_utilization_percent = gpu.utilization_percent;
  metrics.gpu_power_watts = gpu.power_watts;
  metrics.gpu_throttled_percent = gpu.throttled_percent;
  metrics.host_pinned_bytes = memory.pinned_bytes;
  metrics.host_rss_bytes = memory.resident_bytes;
  return metrics;
}

}  // namespace sluice::tools
