#include "engine/runtime/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "aio/check.h"
#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

// Marks of the phase clock at which a wave's passes begin. The step ends at the forward mark of the
// wave after the last.
constexpr int forward_mark(int wave) { return 2 * wave; }
constexpr int backward_mark(int wave) { return 2 * wave + 1; }

}  // namespace

Trainer::Trainer(Resources& parts, const Model& model, const Options& options,
                 const TrainState& state)
    : parts_(parts),
      model_(model),
      options_(options),
      program_(offload::training_step(program_units(model.layout()), options.overlap_update,
                                      parts.plan().waves.count())),
      engine_(parts, parts.plan().fetching.prefetch_units),
      update_(parts, {.rules = options.rules, .in_background = options.overlap_update}, state),
      saved_(static_cast<std::size_t>(model.units())),
      load_(model.layout(),
            {.coefficient = balance_coefficient(model.shape()),
             .micro_batches = parts.plan().waves.of_a_wave},
            compute_device(parts.plan())),
      recorder_(parts.clock(), forward_mark(waves().count()) + 1) {
  if (options.hash_widths)
    parts.binding().hash_units(*options.hash_widths,
                               /*by_itself=*/parts.ranks().part.world == 1);
}

// Records what the device does from here on, in device time.
void Trainer::record(PassPhase phase, int unit, std::int64_t micro_batch) {
  recorder_.next(
      {.phase = phase,
       .unit = unit,
       .wave = wave_,
       .micro_batch = micro_batch < 0 ? -1 : static_cast<std::int64_t>(first_) + micro_batch});
}

// Requires that the device is done with the step. Waits of less than a microsecond are left out.
void Trainer::trace_passes() {
  constexpr std::int64_t kNoWaitNs = 1000;
  for (const PassSpan& span : recorder_.spans()) {
    if (is_wait(span.phase) && span.end_ns - span.begin_ns < kNoWaitNs) continue;
    TraceSpan traced{.track = is_wait(span.phase) ? TraceTrack::kWaits : TraceTrack::kCompute,
                     .name = model_.layout(span.unit).name.c_str(),
                     .begin_ns = span.begin_ns,
                     .end_ns = span.end_ns,
                     .args = {{{"wave", span.wave}}},
                     .phase = phase_name(span.phase)};
    if (span.micro_batch >= 0) traced.args[1] = {"micro_batch", span.micro_batch};
    parts_.trace().add(traced);
  }
}

PassContext Trainer::context(int unit, std::size_t micro_batch) const {
  return {.run_seed = options_.run_seed,
          .step = state().global_step,
          .micro_batch = parts_.plan().sum_order.number_in_step(
              static_cast<std::int64_t>(first_ + micro_batch), parts_.ranks().part.rank),
          .unit = unit,
          .rank = 0,
          .training = true,
          .deterministic = options_.deterministic,
          .documents = batch_->documents_of(first_ + micro_batch)};
}

bool Trainer::keeps_activations(int unit) const {
  const std::vector<bool>& kept = parts_.plan().activations.kept;
  const auto u = static_cast<std::size_t>(unit);
  return u < kept.size() && kept[u];
}

// Starts with the tokens of the wave's micro-batches.
void Trainer::begin_wave(int wave) {
  first_ = static_cast<std::size_t>(waves().first(wave));
  const auto size = static_cast<std::size_t>(waves().size(wave));
  const auto begin = batch_->inputs.begin() + static_cast<std::ptrdiff_t>(first_);
  flow_.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
  load_.begin_wave();
  wave_ = wave;
  parts_.clock().mark(forward_mark(wave));
}

void Trainer::forward(int unit, const UnitViews& views) {
  record(PassPhase::kAwaitInputs, unit);
  parts_.unit_inputs().keep(unit, flow_);
  if (keeps_activations(unit)) {
    saved_[static_cast<std::size_t>(unit)].clear();
    saved_[static_cast<std::size_t>(unit)].resize(flow_.size());
  }
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    record(PassPhase::kForward, unit, static_cast<std::int64_t>(m));
    Saved* const saved =
        keeps_activations(unit) ? &saved_[static_cast<std::size_t>(unit)][m] : nullptr;
    PassContext pass = context(unit, m);
    pass.routed = load_.counted(unit, m);
    flow_[m] = model_.unit(unit).forward(pass, views, flow_[m], saved);
  }
}

// Forward and backward together, so that the logits need not be kept.
void Trainer::head(int unit, const UnitViews& views) {
  record(PassPhase::kGradient, unit);
  load_.end_forward(flow_.size(), batch_->inputs[first_].numel(), balance_scale_);
  engine_.open_gradient(unit);
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    record(PassPhase::kLoss, unit, static_cast<std::int64_t>(m));
    const auto of_step = static_cast<std::int64_t>(first_ + m);
    HeadUnit::Loss loss =
        model_.head().loss_and_gradient(views, flow_[m], batch_->targets[first_ + m], grad_scale_,
                                        parts_.gradients().target(unit, of_step).sums);
    parts_.gradients().added(unit, of_step);
    losses_.push_back(std::move(loss.loss_sum));
    flow_[m] = std::move(loss.grad_input);
  }
  parts_.clock().mark(backward_mark(wave_));
}

void Trainer::backward(int unit, const UnitViews& views) {
  const ModelUnit& code = model_.unit(unit);
  record(PassPhase::kGradient, unit);
  engine_.open_gradient(unit);
  for (std::size_t m = 0; m < flow_.size(); ++m) {
    const auto micro_batch = static_cast<std::int64_t>(m);
    PassContext pass = context(unit, m);
    const auto of_rank = static_cast<std::int64_t>(first_ + m);
    const GradientSink::Target target = parts_.gradients().target(unit, of_rank);
    pass.overwrites = target.overwrites;
    pass.balance_gradient = load_.gradient(unit, m);
    record(PassPhase::kAwaitInputs, unit, micro_batch);
    const at::Tensor input = parts_.unit_inputs().take(unit, m);
    Saved recomputed;
    const bool kept = keeps_activations(unit);
    if (!kept && model_.layout().is_block(unit)) record(PassPhase::kRecompute, unit, micro_batch);
    if (!kept) code.recompute(pass, views, input, recomputed);
    record(PassPhase::kBackward, unit, micro_batch);
    Saved& saved = kept ? saved_[static_cast<std::size_t>(unit)][m] : recomputed;
    flow_[m] = code.backward(pass, views, input, saved, flow_[m], target.sums);
    parts_.gradients().added(unit, of_rank);
  }
  parts_.unit_inputs().release(unit);
}

void Trainer::end_waves() {
  parts_.clock().mark(forward_mark(waves().count()));
  flow_.clear();
}

// Requires that the gradients of all waves are complete. At this point all waits were forward's, so
// they are subtracted from it.
void Trainer::measure_passes() {
  times_.forward_ns = -times_.update_exposed_ns;
  for (int wave = 0; wave < waves().count(); ++wave) {
    times_.forward_ns += parts_.clock().elapsed_ns(forward_mark(wave), backward_mark(wave));
    times_.backward_ns += parts_.clock().elapsed_ns(backward_mark(wave), forward_mark(wave + 1));
  }
  times_.forward_ns = std::max<std::int64_t>(0, times_.forward_ns);
  const std::vector<PassSpan>& spans = recorder_.finish();
  if (!measures_phases_) return;
  times_.passes.emplace().fill(0);
  for (const PassSpan& span : spans)
    (*times_.passes)[static_cast<std::size_t>(span.phase)] += span.end_ns - span.begin_ns;
}

// Over the whole step and all ranks.
double Trainer::counted_targets(const StepBatch& batch) const {
  std::int64_t targets = 0;
  for (std::size_t m = 0; m < batch.targets.size(); ++m)
    targets += static_cast<std::int64_t>(batch.count(m));
  throw_if_error(parts_.ranks().link->sum(std::span(&targets, 1)));
  return static_cast<double>(targets);
}

// Adds in the order of the step's micro-batches.
double Trainer::mean_loss(const StepBatch& batch) const {
  double sum = 0;
  for (const double of_micro_batch : of_step(losses_)) sum += of_micro_batch;
  return sum / counted_targets(batch);
}

std::vector<double> Trainer::of_step(const std::vector<at::Tensor>& own) const {
  std::vector<double> values;
  values.reserve(own.size());
  for (const at::Tensor& value : own) values.push_back(value.item<double>());
  return value_or_throw(all_of_step(parts_.ranks(), parts_.plan().sum_order, values));
}

// For the step, over all ranks.
ExpertFigures Trainer::expert_figures() const {
  ExpertFigures figures{.layers = load_.layers(), .experts = load_.experts(), .rows = load_.rows()};
  if (!load_.exists()) return figures;
  throw_if_error(parts_.ranks().link->sum(std::span(figures.rows)));
  if (!load_.balances()) return figures;
  const std::vector<double> losses = of_step(load_.balance_losses());
  figures.balance_loss =
      std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  return figures;
}

StepOutcome Trainer::step(const StepBatch& batch) {
  const at::NoGradGuard no_tape;
  times_ = {};
  StepOutcome outcome = update_.begin();
  const double tokens = counted_targets(batch);
  SLUICE_CHECK(tokens > 0, "a step has a target that counts");
  SLUICE_CHECK(static_cast<std::int64_t>(batch.inputs.size()) == waves().micro_batches,
               "the waves are cut for a step's micro-batches");
  grad_scale_ = outcome.loss_scale / tokens;
  balance_scale_ =
      outcome.loss_scale / static_cast<double>(waves().micro_batches * parts_.ranks().part.world);
  batch_ = &batch;
  losses_.clear();
  load_.begin_step();
  const bool is_traced = parts_.trace().active();
  recorder_.begin_step(is_traced          ? PassRecorder::How::kStamps
                       : measures_phases_ ? PassRecorder::How::kMarks
                                          : PassRecorder::How::kNot);
  engine_.expect(program_, options_.overlap_update, offload::update_order(program_));
  engine_.run(program_, *this);
  times_.update_exposed_ns = engine_.take_waited_ns();
  measure_passes();  // the device has reached the last mark, and so every stamp
  if (is_traced) trace_passes();

  outcome.loss = mean_loss(batch);
  outcome.experts = expert_figures();
  outcome.times = times_;
  update_.end(engine_.totals(),
              {.losses =
                   [&] {
                     std::vector<double> means(losses_.size());
                     for (std::size_t m = 0; m < means.size(); ++m)
                       means[m] = losses_[m].item<double>() / std::max(batch.count(m), 1.0);
                     return means;
                   },
               .source_of = batch.source_of},
              outcome);
  return outcome;
}

std::vector<LossSum> Trainer::evaluate(const StepBatch& batch) {
  drain();
  return evaluate_batch(parts_, model_, batch);
}

const std::vector<UnitHashes>& Trainer::unit_hashes() {
  UnitBinding& binding = parts_.binding();
  if (!binding.hashes_by_itself()) return binding.hashes();  // disabled, or already gathered
  for (int unit = 0; unit < model_.units(); ++unit) throw_if_error(engine_.await_update(unit));
  throw_if_error(binding.hash_device_units(parts_.plan().state.residency));
  return binding.hashes();
}

void Trainer::gather_unit_hashes() {
  if (!options_.hash_widths || parts_.binding().hashes_by_itself()) return;
  for (int unit = 0; unit < model_.units(); ++unit) value_or_throw(engine_.await_update(unit));
  throw_if_error(parts_.binding().hash_shards(parts_.ranks(), parts_.plan().state.residency));
}

void Trainer::drain() { throw_if_error(parts_.drain()); }

}  // namespace sluice::engine
