#include "engine/train/training_run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "aio/log.h"
#include "aio/make_backend.h"
#include "engine/model/initial_values.h"
#include "engine/train/cuda_device.h"
#include "engine/train/flat_ranges.h"
#include "engine/weights/gpt2_names.h"
#include "engine/weights/safetensors_reader.h"
#include "engine/weights/safetensors_writer.h"
#include "swap/store_inventory.h"

namespace sluice::engine {
namespace {

int threads_of(const config::Config& config) {
  if (config.run.cpu_threads > 0) return static_cast<int>(config.run.cpu_threads);
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 256U));
}

at::ScalarType compute_dtype(config::Precision precision) {
  switch (precision) {
    case config::Precision::kBf16:
      return at::kBFloat16;
    case config::Precision::kFp16:
      return at::kHalf;
    case config::Precision::kFp32:
      break;
  }
  return at::kFloat;
}

aio::BackendKind backend_kind(config::IoBackendChoice choice) {
  switch (choice) {
    case config::IoBackendChoice::kUring:
      return aio::BackendKind::kUring;
    case config::IoBackendChoice::kPosix:
      return aio::BackendKind::kPosix;
    case config::IoBackendChoice::kAuto:
      break;
  }
  return aio::BackendKind::kAuto;
}

std::optional<LossScaleRules> loss_scale_rules(const config::Config& config) {
  if (config.precision != config::Precision::kFp16) return std::nullopt;
  return LossScaleRules{.static_scale = config.fp16.static_loss_scale,
                        .initial_scale_power = static_cast<int>(config.fp16.initial_scale_power),
                        .window_steps = config.fp16.loss_scale_window_steps,
                        .hysteresis = static_cast<int>(config.fp16.hysteresis),
                        .consecutive_hysteresis = config.fp16.consecutive_hysteresis,
                        .min_scale = config.fp16.min_loss_scale};
}

// What the killed predecessors of any run left on the paths is of no use to anybody.
Status clear_leftovers(aio::IoQueue& queue, std::vector<std::string> paths) {
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  SLUICE_ASSIGN_OR_RETURN(const auto removed, swap::remove_leftovers(queue, paths));
  for (const swap::FoundStore& store : removed) log::info("removed: " + swap::describe(store));
  return {};
}

}  // namespace

TrainingRun::TrainingRun(const config::Config& config, const MemoryPlan& plan)
    : config_(config), plan_(plan) {}

TrainingRun::~TrainingRun() {
  trainer_.reset();
  for (const Status& removed :
       {optimizer_ ? optimizer_->remove() : Status(), params_ ? params_->remove() : Status()}) {
    if (!removed.ok()) log::warning(removed.error().message());
  }
}

Status TrainingRun::open_drives() {
  const auto depth = static_cast<int>(config_.aio.queue_depth);
  SLUICE_ASSIGN_OR_RETURN(backend_,
                          aio::make_backend({.kind = backend_kind(config_.aio.backend),
                                             .threads = static_cast<int>(config_.aio.threads),
                                             .queue_depth = depth,
                                             .single_submit = config_.aio.single_submit}));
  const aio::IoQueue::Options options{
      .block_bytes = static_cast<std::uint64_t>(config_.aio.block_bytes), .queue_depth = depth};
  SLUICE_ASSIGN_OR_RETURN(reads_, aio::IoQueue::create(*backend_, options));
  SLUICE_ASSIGN_OR_RETURN(writes_, aio::IoQueue::create(*backend_, options));
  if (plan_.nvme_bytes() == 0) return {};
  std::vector<std::string> paths = config_.param_nvme_paths();
  const std::vector<std::string> more = config_.optimizer_nvme_paths();
  paths.insert(paths.end(), more.begin(), more.end());
  for (const std::string& path : paths)
    SLUICE_RETURN_IF_ERROR(backend_->files().make_directories(path));
  return clear_leftovers(*reads_, paths);
}

Status TrainingRun::open_data() {
  const auto sequence = static_cast<std::uint64_t>(config_.data.sequence_tokens);
  data::TokenFile::Options options;
  if (config_.data.token_type == config::TokenType::kUint16)
    options.type = data::TokenType::kUint16;
  if (config_.data.token_type == config::TokenType::kUint32)
    options.type = data::TokenType::kUint32;
  const auto add = [&](const std::vector<std::string>& paths) -> Status {
    SLUICE_ASSIGN_OR_RETURN(auto corpus, data::TokenCorpus::open(paths, options));
    for (const data::TokenFile& file : corpus.files())
      SLUICE_RETURN_IF_ERROR(file.check_vocab(static_cast<std::uint64_t>(config_.model.vocab)));
    corpora_.push_back(std::move(corpus));
    return {};
  };
  SLUICE_RETURN_IF_ERROR(add(config_.data.train));
  std::vector<data::TokenRange> train = corpora_[0].whole();
  std::vector<data::TokenRange> validation;
  if (!config_.data.validation.empty()) {
    SLUICE_RETURN_IF_ERROR(add(config_.data.validation));
    validation = corpora_[1].whole();
  } else if (config_.data.validation_fraction > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        auto split, corpora_[0].split({.validation_fraction = config_.data.validation_fraction,
                                       .sequence_tokens = sequence}));
    train = std::move(split.train);
    validation = std::move(split.validation);
  }
  SLUICE_ASSIGN_OR_RETURN(
      auto sampler, data::ShuffledSampler::create(
                        train, {.sequence_tokens = sequence,
                                .seed = static_cast<std::uint64_t>(config_.data.shuffle_seed)}));
  train_sampler_ = std::make_unique<data::ShuffledSampler>(std::move(sampler));
  if (validation.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(auto sequential, data::SequentialSampler::create(validation, sequence));
  validation_sampler_ = std::make_unique<data::SequentialSampler>(std::move(sequential));
  return {};
}

Status TrainingRun::make_offloaders() {
  const int threads = threads_of(config_);
  at::set_num_threads(threads);
  SLUICE_ASSIGN_OR_RETURN(update_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(gradient_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(
      params_, offload::ParamOffloader::create(plan_.params,
                                               {.reads = reads_.get(), .writes = writes_.get()}));
  SLUICE_ASSIGN_OR_RETURN(optimizer_, offload::OptimizerOffloader::create(
                                          plan_.optimizer, {.reads = reads_.get(),
                                                            .writes = writes_.get(),
                                                            .executor = update_executor_.get()}));
  return {};
}

Status TrainingRun::make_device() {
  const at::ScalarType dtype = compute_dtype(config_.precision);
  if (plan_.cuda) {
    SLUICE_ASSIGN_OR_RETURN(
        parameters_, make_cuda_unit_parameters(
                         *model_, {.dtype = dtype, .block_slots = plan_.block_slots}, *params_));
    SLUICE_ASSIGN_OR_RETURN(gradients_, make_cuda_gradient_sink(*model_, plan_.grad_type));
    clock_ = make_cuda_phase_clock();
    return {};
  }
  parameters_ = std::make_unique<CpuUnitParameters>(*model_, dtype, *params_);
  SLUICE_ASSIGN_OR_RETURN(
      gradients_, CpuGradientSink::create(*model_, *gradient_executor_,
                                          {.type = plan_.grad_type, .isa = plan_.optimizer.isa}));
  clock_ = std::make_unique<CpuPhaseClock>();
  return {};
}

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(const config::Config& config,
                                                         const MemoryPlan& plan) {
  std::unique_ptr<TrainingRun> run(new TrainingRun(config, plan));
  run->model_ = std::make_unique<GptModel>(model_options(config));
  SLUICE_RETURN_IF_ERROR(run->open_data());
  SLUICE_RETURN_IF_ERROR(run->open_drives());
  SLUICE_RETURN_IF_ERROR(run->make_offloaders());
  SLUICE_RETURN_IF_ERROR(run->make_device());
  TrainState state;
  const auto rules = loss_scale_rules(config);
  if (rules) {
    SLUICE_ASSIGN_OR_RETURN(state.loss_scale, initial_loss_scale(*rules));
  }
  run->trainer_ = std::make_unique<Trainer>(
      Trainer::Options{.optimizer = config.optimizer,
                       .schedule = config.schedule,
                       .clip_norm = config.gradient_clipping_norm,
                       .loss_scale = rules,
                       .recompute = plan.recompute,
                       .overlap_update = config.placement.overlap_update,
                       .deterministic = config.run.deterministic,
                       .run_seed = static_cast<std::uint64_t>(config.run.seed),
                       .prefetch_units = plan.prefetch_units},
      Trainer::Parts{.model = run->model_.get(),
                     .parameters = run->parameters_.get(),
                     .gradients = run->gradients_.get(),
                     .params = run->params_.get(),
                     .optimizer = run->optimizer_.get(),
                     .clock = run->clock_.get(),
                     .trace = &run->trace_},
      state);
  return run;
}

Status TrainingRun::initialise(const Progress& progress) {
  std::unique_ptr<SafetensorsReader> weights;
  std::map<std::string, std::string> name_in_file;
  if (!config_.model.init_from.empty()) {
    SLUICE_ASSIGN_OR_RETURN(weights, SafetensorsReader::open(*reads_, config_.model.init_from));
    const std::vector<TensorSpec> wanted = weight_specs(DType::kF32);
    auto names = match_gpt2_parameters(weights->tensors(), wanted);
    if (!names.ok()) return std::move(names).error().with_context(config_.model.init_from);
    for (std::size_t i = 0; i < wanted.size(); ++i) name_in_file[wanted[i].name] = (*names)[i];
  }
  std::uint64_t total = 0, done = 0;
  for (int unit = 0; unit < model_->units(); ++unit) total += model_->layout(unit).elements;

  HostUnits units(*params_, nullptr, HostUnits::Access::kReplace, *model_);
  const auto seed = static_cast<std::uint64_t>(config_.model.init_seed);
  return optimizer_->restore(units, [&](const offload::StateRange& range) -> Status {
    done += range.master.size();
    if (progress) progress(done, total);
    return for_each_parameter(
        model_->layout(range.unit), range.first_element, range.master.size(),
        [&](const ParameterSpec& parameter, std::uint64_t first, std::uint64_t offset,
            std::uint64_t count) -> Status {
          const std::span<float> masters = range.master.subspan(offset, count);
          if (weights) return weights->read(name_in_file[parameter.name], first, masters);
          fill_initial(parameter, seed, first, masters);
          return {};
        });
  });
}

Status TrainingRun::take_masters(const TakeMasters& take) {
  trainer_->drain();
  HostUnits units(*params_, nullptr, HostUnits::Access::kRead, *model_);
  return optimizer_->snapshot(units, [&](const offload::StateRange& range) -> Status {
    return for_each_parameter(model_->layout(range.unit), range.first_element, range.master.size(),
                              [&](const ParameterSpec& parameter, std::uint64_t first,
                                  std::uint64_t offset, std::uint64_t count) -> Status {
                                return take(parameter, first, range.master.subspan(offset, count));
                              });
  });
}

std::vector<TensorSpec> TrainingRun::weight_specs(DType dtype) const {
  std::vector<TensorSpec> specs;
  for (int unit = 0; unit < model_->units(); ++unit) {
    for (const ParameterSpec& parameter : model_->layout(unit).parameters) {
      specs.push_back({.name = parameter.name,
                       .dtype = dtype,
                       .shape = {parameter.shape.begin(), parameter.shape.end()}});
    }
  }
  return specs;
}

Status TrainingRun::save_weights(const std::string& path, DType dtype) {
  SafetensorsWriter::Options options;
  options.path = path;
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::create(*writes_, options, weight_specs(dtype)));
  SLUICE_RETURN_IF_ERROR(take_masters(
      [&](const ParameterSpec& parameter, std::uint64_t, std::span<const float> masters) {
        return writer->append(parameter.name, masters);
      }));
  return writer->finish();
}

std::uint64_t TrainingRun::tokens_per_step() const {
  return static_cast<std::uint64_t>(config_.batch.micro * config_.batch.accumulation *
                                    config_.data.sequence_tokens);
}

at::Tensor TrainingRun::on_device(const at::Tensor& tokens) const {
  return plan_.cuda ? tokens.to(at::kCUDA) : tokens;
}

StepBatch TrainingRun::read_batch(const std::function<data::Sample(std::uint64_t)>& sample_at,
                                  const data::TokenCorpus& corpus, std::uint64_t first,
                                  std::size_t micro_batches) {
  const std::int64_t rows = config_.batch.micro;
  const std::int64_t length = config_.data.sequence_tokens;
  std::vector<std::int64_t> window(static_cast<std::size_t>(length) + 1);
  StepBatch batch;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    at::Tensor inputs = at::empty({rows, length}, at::kLong);
    at::Tensor targets = at::empty({rows, length}, at::kLong);
    for (std::int64_t row = 0; row < rows; ++row) {
      const Status read = corpus.read(sample_at(first++), window);
      if (!read.ok()) throw TrainError(read.error().message());
      std::copy_n(window.data(), length, inputs.data_ptr<std::int64_t>() + row * length);
      std::copy_n(window.data() + 1, length, targets.data_ptr<std::int64_t>() + row * length);
    }
    batch.inputs.push_back(on_device(inputs));
    batch.targets.push_back(on_device(targets));
  }
  return batch;
}

StepOutcome TrainingRun::step() {
  const auto micro_batches = static_cast<std::size_t>(config_.batch.accumulation);
  const StepBatch batch =
      read_batch([&](std::uint64_t k) { return train_sampler_->at(k); }, corpora_.front(),
                 trainer_->state().samples_drawn, micro_batches);
  const StepOutcome outcome = trainer_->step(batch);
  trainer_->count_samples(static_cast<std::uint64_t>(config_.batch.micro) * micro_batches);
  return outcome;
}

double TrainingRun::evaluate() {
  if (!validation_sampler_) throw TrainError("there is no validation data to evaluate on");
  const auto rows = static_cast<std::uint64_t>(config_.batch.micro);
  const std::uint64_t batches =
      std::min(static_cast<std::uint64_t>(std::max<std::int64_t>(config_.run.eval_batches, 1)),
               std::max<std::uint64_t>(validation_sampler_->count() / rows, 1));
  const StepBatch batch = read_batch(
      [&](std::uint64_t k) { return validation_sampler_->at(k % validation_sampler_->count()); },
      corpora_.back(), 0, batches);
  return trainer_->evaluate(batch);
}

std::uint64_t TrainingRun::gpu_peak_bytes() const { return plan_.cuda ? cuda_peak_bytes() : 0; }

TrainingRun::Traffic TrainingRun::traffic() const {
  const offload::ParamStats params = params_->stats();
  const swap::SwapStats state = optimizer_->stats();
  return {.nvme_read_bytes = params.bytes_read + state.bytes_read,
          .nvme_write_bytes = params.bytes_written + state.bytes_written,
          .h2d_bytes = parameters_->copied_bytes(),
          .d2h_bytes = gradients_->copied_bytes()};
}

}  // namespace sluice::engine
