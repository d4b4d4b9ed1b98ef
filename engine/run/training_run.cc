#include "engine/run/training_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "aio/clock.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/config/stored_config.h"
#include "engine/device/gpu.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/make_model.h"
#include "engine/model/initial_values.h"
#include "engine/run/gathered_state.h"
#include "engine/run/stored_state.h"
#include "engine/runtime/flat_ranges.h"
#include "engine/runtime/weights_file.h"
#include "engine/step/cuda_step.h"
#include "engine/weights/safetensors_writer.h"

namespace sluice::engine {
namespace {

std::optional<UnitBinding::Widths> hash_widths(const config::Config& config,
                                               const MemoryPlan& plan) {
  if (!config.run.hash_units) return std::nullopt;
  return UnitBinding::Widths{
      .param_bytes = static_cast<std::uint64_t>(offload::param_bytes_per_element(plan.types.form)),
      .grad_bytes = offload::element_bytes(plan.types.gradient)};
}

// Empty if the working directory was removed.
std::string working_folder() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

}  // namespace

TrainingRun::TrainingRun(const config::Config& config, const MemoryPlan& plan)
    : config_(config), plan_(plan) {}

TrainingRun::~TrainingRun() {
  if (is_in_step_ && is_first_rank()) static_cast<void>(lead(Order::kEnd));
  if (is_in_step_) static_cast<void>(ranks().link->barrier());  // rank 0 leaves last
}

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(const config::Config& config,
                                                         const MemoryPlan& plan, Communicator& link,
                                                         const MakeBackend& make_backend) {
  std::unique_ptr<TrainingRun> run(new TrainingRun(config, plan));
  if (run->has_other_ranks()) run->all_.emplace();
  run->model_ = make_model(configured_model(config, plan.cuda));
  SLUICE_ASSIGN_OR_RETURN(run->stored_configuration_,
                          config::stored_json(config, working_folder()));
  SLUICE_ASSIGN_OR_RETURN(auto data, RunData::open(config, RunPurpose::kTraining));
  run->data_ = std::make_unique<RunData>(std::move(data));
  at::set_num_threads(compute_threads(config));
  SLUICE_ASSIGN_OR_RETURN(run->parts_, Resources::create(config, run->plan_, run->model(),
                                                         {.use = Resources::Use::kSteps,
                                                          .link = &link,
                                                          .make_backend = make_backend}));
  const UpdateRules rules = update_rules(config, plan.state.settings);
  SLUICE_ASSIGN_OR_RETURN(const TrainState state, initial_state(rules));
  run->trainer_ = std::make_unique<Trainer>(
      *run->parts_, *run->model_,
      Trainer::Options{.rules = rules,
                       .overlap_update = config.placement.overlap_update,
                       .deterministic = config.run.deterministic,
                       .run_seed = static_cast<std::uint64_t>(config.run.seed),
                       .hash_widths = hash_widths(config, plan)},
      state);
  run->trainer_->measure_phases(config.wall_clock_breakdown);
  if (!config.samples.prompts.empty())
    run->feed_ = std::make_unique<TokenFeed>(config, run->plan_, *run->model_, *run->parts_);
  return run;
}

Status TrainingRun::load_base(const Progress& progress) {
  const std::uint64_t total = base()->elements() + parts_->state().elements();
  return base()->load(config_, *parts_->drives().reads, model_->shape(), [&](std::uint64_t done) {
    return progress ? progress(done, total) : Status();
  });
}

TrainingRun::Progress TrainingRun::behind_base(const Progress& progress) const {
  if (base() == nullptr || !progress) return progress;
  return [this, progress](std::uint64_t done, std::uint64_t total) {
    return progress(base()->elements() + done, base()->elements() + total);
  };
}

Status TrainingRun::initialise(const Progress& progress) {
  if (base() == nullptr) return set_initial_state(progress);
  SLUICE_RETURN_IF_ERROR(load_base(progress));
  std::optional<AdapterWeights> adapters;
  if (!config_.lora.adapter.empty()) {
    auto opened = AdapterWeights::open(*parts_->drives().reads, config_.lora.adapter,
                                       configured_model(config_, plan_.cuda));
    if (!opened.ok()) return std::move(opened).error().with_context("recipe.lora.adapter");
    adapters = *std::move(opened);
  }
  const auto seed = static_cast<std::uint64_t>(config_.model.init_seed);
  return parts_->state().set(
      [&](const ParameterSpec& parameter, const offload::StateSlice& to) -> Status {
        if (adapters) return adapters->read(parameter.name, to.first_element, to.master());
        fill_initial(parameter, seed, to.first_element, to.master());
        return {};
      },
      offload::Calls::kInOrder, behind_base(progress));
}

Status TrainingRun::set_initial_state(const Progress& progress) {
  std::optional<WeightsFile> weights;
  if (!config_.model.init_from.empty()) {
    auto opened =
        WeightsFile::open(*parts_->drives().reads, config_.model.init_from, model_->shape());
    if (!opened.ok()) return std::move(opened).error().with_context("model.init_from");
    weights = *std::move(opened);
  }
  if (weights) {
    return parts_->state().set(
        [&](const ParameterSpec& parameter, const offload::StateSlice& to) {
          return weights->read(parameter, to.first_element, to.master());
        },
        offload::Calls::kInOrder, progress);
  }
  const auto seed = static_cast<std::uint64_t>(config_.model.init_seed);
  return parts_->state().set(
      [&](const ParameterSpec& parameter, const offload::StateSlice& to) -> Status {
        fill_initial(parameter, seed, to.first_element, to.master());
        return {};
      },
      offload::Calls::kAnyOrder, progress);
}

Status TrainingRun::resume(CheckpointReader& checkpoint, const Progress& progress) {
  CheckpointState now = checkpoint_state();
  SLUICE_RETURN_IF_ERROR(check_same_run(checkpoint.state(), now));
  if (is_first_rank()) warn_of_other_bits(checkpoint.state(), now);
  if (!checkpoint.state().run.imported())
    report_moments(checkpoint.manifest().moments, stored_moments(plan_.types));
  if (base() != nullptr) {
    SLUICE_RETURN_IF_ERROR(load_base(progress));
    SLUICE_RETURN_IF_ERROR(
        check_base(checkpoint.state().run, base()->fingerprint(), config_.model.init_from));
  }
  // Imported weights are the start of this run, whose loss scale has not changed yet.
  TrainState state = checkpoint.state().run.imported() ? trainer_->state()
                                                       : train_state(checkpoint.state().position);
  SLUICE_ASSIGN_OR_RETURN(state,
                          continued_state(update_rules(config_, plan_.state.settings), state));
  SLUICE_RETURN_IF_ERROR(parts_->state().set(
      [&](const ParameterSpec& parameter, const offload::StateSlice& to) {
        return checkpoint.read(parameter.name, to);
      },
      offload::Calls::kInOrder, behind_base(progress), state.applied_step));
  trainer_->set_state(state);
  return {};
}

Status TrainingRun::take_state(const TakeState& take, offload::Calls calls) {
  is_in_step_ = false;
  SLUICE_RETURN_IF_ERROR(lead(Order::kTakeState));
  trainer_->drain();
  Status taken = take_gathered_state(parts_->state(), ranks(), take, calls);
  is_in_step_ = ranks().link->health().ok();
  return taken;
}

RunState TrainingRun::settled_state() {
  trainer_->drain();
  return parts_->state();
}

CheckpointState TrainingRun::checkpoint_state() const {
  return {.position = stored_position(trainer_->state()),
          .run = stored_run(config_, model_->layout(), data_->order(),
                            base() != nullptr ? &base()->fingerprint() : nullptr),
          .configuration = stored_configuration_,
          .program_version = SLUICE_VERSION};
}

Status TrainingRun::save_weights(const std::string& path, DType dtype) {
  SafetensorsWriter::Options options;
  options.path = path;
  const auto name = [this](const std::string& parameter) {
    return base() != nullptr ? peft_name(model_->shape(), parameter) : parameter;
  };
  std::vector<TensorSpec> tensors = parameter_specs(model(), dtype);
  for (TensorSpec& tensor : tensors) tensor.name = name(tensor.name);
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::create(*parts_->drives().writes, options, std::move(tensors)));
  SLUICE_RETURN_IF_ERROR(
      take_state([&](const ParameterSpec& parameter, const offload::ConstStateSlice& state) {
        return writer->append(name(parameter.name), state.master());
      }));
  return writer->finish();
}

std::uint64_t TrainingRun::tokens_per_step() const {
  return static_cast<std::uint64_t>(config_.batch.micro * config_.batch.accumulation *
                                    ranks().part.world * config_.data.sequence_tokens);
}

StepOutcome TrainingRun::step() {
  is_in_step_ = false;
  throw_if_error(lead(Order::kStep));
  try {
    const StepOutcome outcome = one_step();
    is_in_step_ = true;
    return outcome;
  } catch (const NonFiniteGradient&) {  // on all ranks, which can still end a save
    is_in_step_ = true;
    throw;
  }
}

StepOutcome TrainingRun::one_step() {
  if (GpuMonitor* const monitor = parts_->gpu_monitor()) monitor->restart();
  const auto step = static_cast<std::int64_t>(trainer_->state().global_step) + 1;
  const SteadyClock clock;
  const TraceScope traced(trace(), clock, TraceTrack::kRun, "step", {"step", step});
  const auto rows = static_cast<std::uint64_t>(config_.batch.micro);
  const auto micro_batches = static_cast<std::uint64_t>(config_.batch.accumulation);
  std::vector<std::uint64_t> firsts;
  firsts.reserve(micro_batches);
  for (std::int64_t m = 0; m < config_.batch.accumulation; ++m) {
    const auto number =
        static_cast<std::uint64_t>(plan_.sum_order.number_in_step(m, ranks().part.rank));
    firsts.push_back(trainer_->state().samples_drawn + number * rows);
  }
  if (config_.flops_profiler.enabled) {  // on every rank
    trainer_->measure_phases(config_.wall_clock_breakdown || step == config_.flops_profiler.step);
  }
  StepOutcome outcome =
      trainer_->step(data_->training_batch(std::move(firsts), compute_device(plan_)));
  trainer_->count_samples(rows * micro_batches * static_cast<std::uint64_t>(ranks().part.world));
  throw_if_error(share_figures(outcome));
  if (!outcome.skipped) trainer_->gather_unit_hashes();
  return outcome;
}

}  // namespace sluice::engine
