#include "engine/step/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <utility>

namespace sluice::engine {
namespace {

// Of a phase clock: where a wave's passes begin; the step ends where one more wave would begin.
constexpr int forward_mark(int wave) { return 2 * wave; }
constexpr int backward_mark(int wave) { return 2 * wave + 1; }

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Trainer::Trainer(const Options& options, const Parts& parts, const TrainState& state)
    : options_(options),
      parts_(parts),
      fetched_(*parts.parameters),
      program_(offload::training_step(program_units(parts.model->layout()), options.overlap_update,
                                      options.waves.count())),
      state_(state),
      saved_(static_cast<std::size_t>(parts.model->units())),
      recorder_(*parts.clock, forward_mark(options.waves.count()) + 1) {
  if (options.hash_widths)
    parts_.binding->hash_units(*options.hash_widths, /*by_itself=*/options.ranks.is_alone());
}

// What the device does from here on, as it gets to it.
void Trainer::record(PassPhase phase, int unit, std::int64_t micro_batch) {
  recorder_.next(
      {.phase = phase,
       .unit = unit,
       .wave = wave_,
       .micro_batch = micro_batch < 0 ? -1 : static_cast<std::int64_t>(first_) + micro_batch});
}

// Once the device is done with the step. A wait of less than a microsecond was none.
void Trainer::trace_passes() {
  constexpr std::int64_t kNoWaitNs = 1000;
  for (const PassSpan& span : recorder_.spans()) {
    if (is_wait(span.phase) && span.end_ns - span.begin_ns < kNoWaitNs) continue;
    TraceSpan traced{.track = is_wait(span.phase) ? TraceTrack::kWaits : TraceTrack::kCompute,
                     .name = parts_.model->layout(span.unit).name.c_str(),
                     .begin_ns = span.begin_ns,
                     .end_ns = span.end_ns,
                     .args = {{{"wave", span.wave}}},
                     .phase = phase_name(span.phase)};
    if (span.micro_batch >= 0) traced.args[1] = {"micro_batch", span.micro_batch};
    parts_.trace->add(traced);
  }
}

PassContext Trainer::context(int unit, std::size_t micro_batch) const {
  return {.run_seed = options_.run_seed,
          .step = state_.global_step,
          .micro_batch = number_in_step(first_ + micro_batch),
          .unit = unit,
          .rank = 0,
          .training = true,
          .deterministic = options_.deterministic,
          .documents = batch_->documents_of(first_ + micro_batch)};
}

// Over all ranks.
std::int64_t Trainer::number_in_step(std::size_t micro_batch) const {
  return options_.order.number_in_step(static_cast<std::int64_t>(micro_batch),
                                       options_.ranks.part.rank);
}

// How long it took.
std::int64_t Trainer::wait_for_update(int unit) {
  if (parts_.optimizer->is_ready(unit)) {
    must(parts_.optimizer->wait_ready(unit));
    return 0;
  }
  const std::int64_t begin_ns = now_ns();
  must(parts_.optimizer->wait_ready(unit));
  const std::int64_t end_ns = now_ns();
  parts_.trace->add({.track = TraceTrack::kWaits,
                     .name = parts_.model->layout(unit).name.c_str(),
                     .begin_ns = begin_ns,
                     .end_ns = end_ns,
                     .phase = "await update"});
  return end_ns - begin_ns;
}

// The order in which the host's parameters will be wanted, up to the next step's update. What the
// device keeps is not asked for again.
void Trainer::expect_units() const {
  const offload::KeepsUnit keeps = [&](int unit, offload::PassDirection direction) {
    return parts_.parameters->keeps(unit, direction);
  };
  std::vector<int> order = offload::host_order(program_, options_.overlap_update, keeps);
  const std::vector<int> next = offload::update_order(program_);
  order.insert(order.end(), next.begin(), next.end());
  expect_on_host(*parts_.params, order);
  // What no update changes is asked for by passes alone.
  std::vector<int> passes = offload::host_order(program_, /*updates_too=*/false, keeps);
  passes.insert(passes.end(), next.begin(), next.end());
  parts_.parameters->expect_base(passes);
}

bool Trainer::keeps_activations(int unit) const {
  const auto u = static_cast<std::size_t>(unit);
  return u < options_.keeps_activations.size() && options_.keeps_activations[u];
}

at::Tensor Trainer::run_unit(int unit, std::size_t micro_batch, const UnitViews& views,
                             const at::Tensor& input) {
  Saved* const saved =
      keeps_activations(unit) ? &saved_[static_cast<std::size_t>(unit)][micro_batch] : nullptr;
  return parts_.model->unit(unit).forward(context(unit, micro_batch), views, input, saved);
}

// The tokens of its micro-batches, of which all may be in one.
void Trainer::begin_wave(int wave) {
  first_ = static_cast<std::size_t>(options_.waves.first(wave));
  const auto size = static_cast<std::size_t>(options_.waves.size(wave));
  const auto begin = batch_->inputs.begin() + static_cast<std::ptrdiff_t>(first_);
  flow_.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
  parts_.clock->mark(forward_mark(wave));
}

void Trainer::forward(int unit, const UnitViews& views) {
  record(PassPhase::kAwaitInputs, unit);
  parts_.unit_inputs->keep(unit, flow_);
  if (keeps_activations(unit)) {
    saved_[static_cast<std::size_t>(unit)].clear();
    saved_[static_cast<std::size_t>(unit)].resize(flow_.size());
  }
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    record(PassPhase::kForward, unit, static_cast<std::int64_t>(m));
    flow_[m] = run_unit(unit, m, views, flow_[m]);
  }
}

// Forward and backward in one, so that the logits need not be kept.
void Trainer::head(int unit, const UnitViews& views) {
  record(PassPhase::kGradient, unit);
  must(parts_.gradients->open(unit));
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    record(PassPhase::kLoss, unit, static_cast<std::int64_t>(m));
    const auto of_step = static_cast<std::int64_t>(first_ + m);
    HeadUnit::Loss loss = parts_.model->head().loss_and_gradient(
        views, flow_[m], batch_->targets[first_ + m], grad_scale_,
        parts_.gradients->target(unit, of_step).sums);
    parts_.gradients->added(unit, of_step);
    losses_.push_back(std::move(loss.loss_sum));
    flow_[m] = std::move(loss.grad_input);
  }
}

void Trainer::backward(int unit, const UnitViews& views) {
  const ModelUnit& code = parts_.model->unit(unit);
  record(PassPhase::kGradient, unit);
  must(parts_.gradients->open(unit));
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    const auto micro_batch = static_cast<std::int64_t>(m);
    PassContext pass = context(unit, m);
    const auto of_rank = static_cast<std::int64_t>(first_ + m);
    const GradientSink::Target target = parts_.gradients->target(unit, of_rank);
    pass.overwrites = target.overwrites;
    record(PassPhase::kAwaitInputs, unit, micro_batch);
    const at::Tensor input = parts_.unit_inputs->take(unit, m);
    Saved recomputed;
    const bool kept = keeps_activations(unit);
    if (!kept && parts_.model->layout().is_block(unit))
      record(PassPhase::kRecompute, unit, micro_batch);
    if (!kept) code.recompute(pass, views, input, recomputed);
    record(PassPhase::kBackward, unit, micro_batch);
    Saved& saved = kept ? saved_[static_cast<std::size_t>(unit)][m] : recomputed;
    flow_[m] = code.backward(pass, views, input, saved, flow_[m], target.sums);
    parts_.gradients->added(unit, of_rank);
  }
  parts_.unit_inputs->release(unit);
}

// What the program fetches next; in forward only as far as the updates of the previous step have
// come.
void Trainer::prefetch_behind(std::size_t position) {
  using offload::StepOp;
  const offload::StepOperation& done = program_[position];
  const bool before_updates = done.wave == 0 && done.op == StepOp::kForward;
  const StepOp wanted = before_updates ? StepOp::kFetch : StepOp::kFetchAgain;
  const bool gathers = parts_.parameters->prefetch_gathers();
  int left = options_.prefetch_units;
  for (std::size_t next = position + 1; next < program_.size() && left > 0; ++next) {
    const offload::StepOperation& it = program_[next];
    if (it.op == StepOp::kReadState) return;
    if (it.op != wanted) continue;
    if (gathers && before_updates) {
      // Whether an update is done is not for each rank to find: all wait, for the next one alone.
      times_.update_exposed_ns += wait_for_update(it.unit);
      left = 1;
    }
    if (before_updates && !parts_.optimizer->is_ready(it.unit)) return;
    must(parts_.parameters->prefetch(it.unit));
    --left;
  }
}

// What earlier waves have added up for the units whose gradients come next.
void Trainer::prefetch_sums(std::size_t position) {
  using offload::StepOp;
  int left = GradientSink::kSumsAhead;
  for (std::size_t next = position + 1; next < program_.size() && left > 0; ++next) {
    const offload::StepOperation& it = program_[next];
    const bool begins_a_sum =
        it.wave == 0 && (it.op == StepOp::kHead || it.op == StepOp::kBackward);
    if (begins_a_sum) return;  // it needs a place before any that is fetched
    if (it.op != StepOp::kFetchSum) continue;
    must(parts_.gradients->prefetch(it.unit));
    --left;
  }
}

// One operation that computes, with the parameters that were fetched for it.
void Trainer::compute(std::size_t position) {
  const auto& [op, unit, wave] = program_[position];
  const bool reads = op != offload::StepOp::kBackward || unit > 0;
  const UnitViews views = reads ? fetched_.views(parts_.model->layout(), unit) : UnitViews();
  if (op == offload::StepOp::kForward)
    forward(unit, views);
  else if (op == offload::StepOp::kHead)
    head(unit, views);
  else
    backward(unit, views);
  fetched_.release();
}

// Forward, backward, and the gradient's totals; the update is up to those.
GradientTotals Trainer::passes() {
  using offload::StepOp;
  GradientTotals totals;
  losses_.clear();
  int waves_begun = 0;
  for (std::size_t position = 0; position < program_.size(); ++position) {
    const auto& [op, unit, wave] = program_[position];
    if (wave == waves_begun) begin_wave(waves_begun++);
    wave_ = wave;
    switch (op) {
      case StepOp::kAwaitUpdates:  // the previous step has
        break;
      case StepOp::kAwaitUpdate:
        times_.update_exposed_ns += wait_for_update(unit);
        break;
      case StepOp::kFetch:
      case StepOp::kFetchAgain:
        record(PassPhase::kAwaitParams, unit);
        fetched_.acquire(unit);
        break;
      case StepOp::kForward:
      case StepOp::kHead:
      case StepOp::kBackward:
        compute(position);
        if (op == StepOp::kHead) parts_.clock->mark(backward_mark(wave));
        if (op != StepOp::kForward) break;
        recorder_.end();
        prefetch_behind(position);
        break;
      case StepOp::kFetchSum:  // open() waits for it
        must(parts_.gradients->prefetch(unit));
        break;
      case StepOp::kKeepSum:
      case StepOp::kSendGradient:
        record(PassPhase::kGradient, unit);
        // Behind the sum, on the ranks' one stream, it would keep the next backward waiting.
        if (parts_.parameters->prefetch_gathers()) prefetch_behind(position);
        must(op == StepOp::kKeepSum ? parts_.gradients->keep(unit)
                                    : parts_.gradients->finish(unit));
        recorder_.end();
        if (!parts_.parameters->prefetch_gathers()) prefetch_behind(position);
        prefetch_sums(position);
        break;
      case StepOp::kReadState:
        must(parts_.optimizer->prefetch());
        break;
      case StepOp::kNorm:
        parts_.clock->mark(forward_mark(wave + 1));
        flow_.clear();
        totals = must(parts_.gradients->totals());
        break;
      case StepOp::kUpdate:
        break;
    }
  }
  return totals;
}

// Once the step's gradients are complete, of all waves. So far the waits are forward's, and are
// counted only as such.
void Trainer::measure_passes() {
  times_.forward_ns = -times_.update_exposed_ns;
  for (int wave = 0; wave < options_.waves.count(); ++wave) {
    times_.forward_ns += parts_.clock->elapsed_ns(forward_mark(wave), backward_mark(wave));
    times_.backward_ns += parts_.clock->elapsed_ns(backward_mark(wave), forward_mark(wave + 1));
  }
  times_.forward_ns = std::max<std::int64_t>(0, times_.forward_ns);
  const std::vector<PassSpan>& spans = recorder_.finish();
  if (!measures_phases_) return;
  times_.passes.emplace().fill(0);
  for (const PassSpan& span : spans)
    (*times_.passes)[static_cast<std::size_t>(span.phase)] += span.end_ns - span.begin_ns;
}

// Of the whole step.
double Trainer::counted_targets(const StepBatch& batch) const {
  std::int64_t targets = 0;
  for (std::size_t m = 0; m < batch.targets.size(); ++m)
    targets += static_cast<std::int64_t>(batch.count(m));
  if (!options_.ranks.is_alone()) must(options_.ranks.link->sum(std::span(&targets, 1)));
  return static_cast<double>(targets);
}

// Added up in the order of the step's micro-batches, whichever ranks they are with.
double Trainer::mean_loss(const StepBatch& batch) const {
  std::vector<double> sums;
  sums.reserve(losses_.size());
  for (const at::Tensor& loss : losses_) sums.push_back(loss.item<double>());
  double sum = 0;
  for (const double of_micro_batch : must(all_of_step(options_.ranks, options_.order, sums)))
    sum += of_micro_batch;
  return sum / counted_targets(batch);
}

void Trainer::update(const GradientTotals& totals, StepOutcome& outcome) {
  outcome.grad_norm = std::sqrt(totals.square_sum) / outcome.loss_scale;
  make_scalars(options_.rules, state_, outcome.grad_norm, scalars_);
  count_applied(options_.rules, state_);
  const std::int64_t begin_ns = now_ns();
  must(parts_.optimizer->step({.groups = scalars_,
                               .source = parts_.binding,
                               .background = options_.overlap_update,
                               .number = state_.applied_step}));  // this one counts by now
  times_.update_exposed_ns += now_ns() - begin_ns;
  parts_.parameters->changed();
}

StepOutcome Trainer::step(const StepBatch& batch) {
  const at::NoGradGuard no_tape;
  times_ = {};
  StepOutcome outcome;
  outcome.loss_scale = loss_scale(options_.rules, state_);
  outcome.learning_rate = config::learning_rate(options_.rules.schedule, state_.applied_step);
  const double tokens = counted_targets(batch);
  SLUICE_CHECK(tokens > 0, "a step has a target that counts");
  SLUICE_CHECK(static_cast<std::int64_t>(batch.inputs.size()) == options_.waves.micro_batches,
               "the waves are cut for a step's micro-batches");
  grad_scale_ = outcome.loss_scale / tokens;
  batch_ = &batch;
  expect_units();
  const bool is_traced = parts_.trace->active();
  recorder_.begin_step(is_traced          ? PassRecorder::How::kStamps
                       : measures_phases_ ? PassRecorder::How::kMarks
                                          : PassRecorder::How::kNot);
  const GradientTotals totals = passes();
  measure_passes();  // the device has reached the last mark, and so every stamp
  if (is_traced) trace_passes();

  outcome.loss = mean_loss(batch);
  if (totals.finite)
    update(totals, outcome);
  else
    handle_overflow(batch, totals, outcome);
  times_.update_ns = parts_.binding->last_step_ns();
  outcome.times = times_;
  return outcome;
}

std::vector<LossSum> Trainer::evaluate(const StepBatch& batch) {
  drain();
  return evaluate_batch(
      {.model = parts_.model, .parameters = parts_.parameters, .params = parts_.params}, batch);
}

const std::vector<UnitHashes>& Trainer::unit_hashes() {
  if (!options_.ranks.is_alone()) return parts_.binding->hashes();  // gathered by then
  for (int unit = 0; options_.hash_widths && unit < parts_.model->units(); ++unit)
    wait_for_update(unit);
  must(parts_.binding->hash_device_units(options_.residency));
  return parts_.binding->hashes();
}

void Trainer::gather_unit_hashes() {
  if (!options_.hash_widths || options_.ranks.is_alone()) return;
  for (int unit = 0; unit < parts_.model->units(); ++unit) wait_for_update(unit);
  must(parts_.binding->hash_shards(options_.ranks, options_.residency));
}

void Trainer::drain() {
  must(parts_.optimizer->drain());
  must(parts_.params->drain());
}

}  // namespace sluice::engine
