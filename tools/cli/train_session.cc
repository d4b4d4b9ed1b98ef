#include "tools/cli/train_session.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "aio/clock.h"
#include "aio/drive_names.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/observe/process_memory.h"

namespace sluice::tools {
namespace {

using engine::StepMetrics;
using engine::TrainingRun;

void count_traffic(const TrainingRun::Traffic& before, const TrainingRun::Traffic& now,
                   StepMetrics& metrics) {
  metrics.nvme_read_bytes = now.nvme_read_bytes - before.nvme_read_bytes;
  metrics.nvme_write_bytes = now.nvme_write_bytes - before.nvme_write_bytes;
  metrics.h2d_bytes = now.h2d_bytes - before.h2d_bytes;
  metrics.d2h_bytes = now.d2h_bytes - before.d2h_bytes;
}

std::string seconds(std::int64_t ns) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(ns) * 1e-9 << " s";
  return text.str();
}

std::string describe(const engine::SavedCheckpoint& saved) {
  std::string text = "saved " + saved.path + " (" + format_bytes(saved.bytes) +
                     "; training stood still for " + seconds(saved.stopped_ns);
  if (saved.took_ns > saved.stopped_ns) text += ", on the disk after " + seconds(saved.took_ns);
  return text + ")";
}

}  // namespace

TrainSession::TrainSession(const Parts& parts, std::int64_t steps)
    : parts_(parts),
      steps_(steps),
      progress_({.total_steps = steps,
                 .plain_every_steps =
                     std::max<std::int64_t>(parts.run->config().run.log_every_steps, 1)}) {}

Result<TrainSession::End> TrainSession::train(const Interrupt& interrupt) {
  if (parts_.checkpoints != nullptr) SLUICE_RETURN_IF_ERROR(parts_.checkpoints->prune());
  bool interrupted = interrupt.requested();
  const std::int64_t first = parts_.run->trainer().state().global_step + 1;
  for (std::int64_t step = first; step <= steps_ && !interrupted; ++step) {
    SLUICE_RETURN_IF_ERROR(one_step(step));
    interrupted = interrupt.requested();
    if (saves_after(step, interrupted)) SLUICE_RETURN_IF_ERROR(save());
    SLUICE_RETURN_IF_ERROR(tell_saves());
  }
  if (parts_.checkpoints != nullptr) parts_.checkpoints->wait();
  SLUICE_RETURN_IF_ERROR(tell_saves());
  parts_.run->trainer().drain();
  return interrupted ? End::kInterrupted : End::kCompleted;
}

void TrainSession::print_totals() {
  progress_.clear();
  std::cout << totals_.closing_table();
}

Status TrainSession::one_step(std::int64_t step) {
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  parts_.run->trace().begin_step(step, begin_ns);
  const TrainingRun::Traffic before = parts_.run->traffic();
  const engine::StepOutcome outcome = parts_.run->step();
  StepMetrics metrics = metrics_of(step, outcome, clock.now_ns() - begin_ns);
  count_traffic(before, parts_.run->traffic(), metrics);
  if (!outcome.skipped) metrics.unit_hashes = parts_.run->trainer().unit_hashes();
  scores_ = {.loss = metrics.loss};
  if (evaluates_after(step)) {
    progress_.clear();
    metrics.val_loss = scores_.validation_loss = parts_.run->evaluate();
    std::cerr << "step " << step << "  validation loss " << *metrics.val_loss << "\n";
  }
  totals_.add(metrics);
  progress_.update(metrics);
  return parts_.log->append(metrics);
}

bool TrainSession::evaluates_after(std::int64_t step) const {
  const std::int64_t every = parts_.run->config().run.eval_every_steps;
  return parts_.run->has_validation() && (step == steps_ || (every > 0 && step % every == 0));
}

bool TrainSession::saves_after(std::int64_t step, bool interrupted) const {
  if (parts_.checkpoints == nullptr) return false;
  const config::Run& run = parts_.run->config().run;
  const std::int64_t every = run.checkpoint_every_steps;
  return interrupted || (step == steps_ && run.checkpoint_at_end) ||
         (every > 0 && step % every == 0);
}

Status TrainSession::save() {
  progress_.clear();
  return parts_.checkpoints->save(scores_);
}

Status TrainSession::tell_saves() {
  if (parts_.checkpoints == nullptr) return {};
  for (const engine::SavedCheckpoint& saved : parts_.checkpoints->finished()) {
    progress_.clear();
    if (saved.status.ok()) {
      std::cerr << describe(saved) << "\n";
      if (!saved.pruned.ok())
        log::warning("an older checkpoint stays: " + saved.pruned.error().message());
      continue;
    }
    Error error = saved.status.error();
    if (error.code() != ErrorCode::kNoSpace) {
      return std::move(error).with_context("the checkpoint of step " + std::to_string(saved.step) +
                                           ", " + saved.path + " on " +
                                           aio::describe_drive(saved.path));
    }
    ++failed_saves_;
    log::warning("the checkpoint of step " + std::to_string(saved.step) + " was not saved: " +
                 error.message() + ". Training goes on; free some space, or lower run.keep_last");
  }
  return {};
}

StepMetrics TrainSession::metrics_of(std::int64_t step, const engine::StepOutcome& outcome,
                                     std::int64_t took_ns) const {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = outcome.loss;
  metrics.lr = outcome.learning_rate;
  metrics.grad_norm = outcome.grad_norm;
  metrics.loss_scale = outcome.loss_scale;
  metrics.skipped = outcome.skipped;
  metrics.step_ms = ms(took_ns);
  metrics.tokens_per_s =
      static_cast<double>(parts_.run->tokens_per_step()) / (static_cast<double>(took_ns) * 1e-9);
  metrics.forward_ms = ms(outcome.times.forward_ns);
  metrics.backward_ms = ms(outcome.times.backward_ns);
  metrics.update_ms = ms(outcome.times.update_ns);
  metrics.update_exposed_ms = ms(outcome.times.update_exposed_ns);
  metrics.gpu_peak_bytes = parts_.run->gpu_peak_bytes();
  const auto memory = engine::process_memory();
  if (memory.ok()) {
    // The kernel does not count what a GPU's driver pins.
    metrics.host_pinned_bytes = std::max(memory->pinned_bytes, parts_.run->gpu_pinned_bytes());
    metrics.host_rss_bytes = memory->resident_bytes;
  }
  return metrics;
}

}  // namespace sluice::tools
