#include "bench/model_workload.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>

#include "bench/device_clock.h"
#include "engine/families/make_model.h"
#include "engine/model/gpt2/gpt2_layout.h"

namespace sluice::bench {
namespace {

using engine::Model;
using engine::PassContext;
using engine::Saved;
using engine::UnitViews;

constexpr double kInitialDeviation = 0.02;
constexpr int kWarmUps = 3;
constexpr int kHead = 2;  // of a model with one layer

at::ScalarType dtype_of(ActivationType type) {
  switch (type) {
    case ActivationType::kFp32:
      return at::kFloat;
    case ActivationType::kBf16:
      return at::kBFloat16;
    case ActivationType::kFp16:
      return at::kHalf;
  }
  return at::kFloat;
}

engine::ModelOptions one_layer(const ModelBenchOptions& options) {
  engine::ModelShape shape = options.shape;
  shape.layers = 1;
  return {.shape = shape, .padded_vocab = options.padded_vocab};
}

class ModelWorkload {
 public:
  explicit ModelWorkload(const ModelBenchOptions& options)
      : options_(options),
        made_(engine::make_model(one_layer(options))),
        model_(*made_),
        clock_(options.cuda),
        device_(options.cuda ? at::kCUDA : at::kCPU),
        numbers_(at::TensorOptions().dtype(dtype_of(options.dtype)).device(device_)) {
    at::manual_seed(1);
    for (int unit = 0; unit < model_.units(); ++unit) add_unit(unit);
    const engine::PassShape& pass = options.pass;
    input_ = at::randn({pass.micro_batch, pass.tokens, options.shape.hidden}, numbers_);
    gradient_ = at::randn_like(input_).mul_(1e-3);
    const auto ids = at::TensorOptions().dtype(at::kLong).device(device_);
    tokens_ = at::randint(options.shape.vocab, {pass.micro_batch, pass.tokens}, ids);
    targets_ = at::randint(options.shape.vocab, {pass.micro_batch, pass.tokens}, ids);
  }

  std::vector<PassMeasurement> measure();

 private:
  using Call = std::function<void()>;

  void add_unit(int unit) {
    const engine::UnitLayout& layout = model_.layout(unit);
    const auto elements = static_cast<std::int64_t>(layout.slot_elements);
    const at::Tensor flat = at::randn({elements}, numbers_).mul_(kInitialDeviation);
    parameters_.emplace_back(layout, flat);
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      if (layout.parameters[i].initial_value == 0) continue;
      at::Tensor parameter = parameters_.back()[static_cast<int>(i)];
      parameter.add_(layout.parameters[i].initial_value);
    }
    gradients_.emplace_back(layout, at::zeros({elements}, numbers_.dtype(at::kFloat)));
  }

  // `before` is not timed; what it saves counts.
  PassMeasurement time(const char* name, double flops, const Call& before, const Call& call);
  std::vector<PassMeasurement> measure_block();
  std::vector<PassMeasurement> measure_rest();
  UnitViews with_embedding(const std::vector<UnitViews>& units) const {
    const UnitViews* const lent[] = {&units[0]};
    return engine::with_borrowed(model_.layout(), static_cast<int>(kHead), units[kHead], lent);
  }
  double flops(double per_token) const {
    return per_token * static_cast<double>(options_.pass.micro_batch * options_.pass.tokens);
  }

  const ModelBenchOptions& options_;
  const std::unique_ptr<Model> made_;
  const Model& model_;
  DeviceClock clock_;
  at::Device device_;
  at::TensorOptions numbers_;
  std::vector<UnitViews> parameters_;
  std::vector<UnitViews> gradients_;
  at::Tensor input_;
  at::Tensor gradient_;
  at::Tensor tokens_;
  at::Tensor targets_;
  Saved saved_;
};

PassMeasurement ModelWorkload::time(const char* name, double flops, const Call& before,
                                    const Call& call) {
  PassMeasurement measured{.name = name, .ms = {}, .flops = flops, .peak_bytes = 0};
  for (int run = -kWarmUps; run < options_.runs; ++run) {
    saved_.clear();
    const std::uint64_t others = clock_.allocated_bytes();
    before();
    clock_.start();
    call();
    const double ms = clock_.stop_ms();
    if (run < 0) continue;
    measured.ms.push_back(ms);
    measured.peak_bytes = std::max(measured.peak_bytes, clock_.peak_bytes() - others);
  }
  saved_.clear();
  return measured;
}

std::vector<PassMeasurement> ModelWorkload::measure_block() {
  const engine::ModelUnit& block = model_.unit(1);
  const UnitViews& w = parameters_[1];
  const PassContext context = {
      .unit = 1, .deterministic = options_.deterministic, .overwrites = true};
  const engine::Flops cost = engine::block_flops(options_.shape, options_.pass.tokens);
  const Call nothing = [] {};
  const engine::PeakOptions peak = {.cpu = !options_.cuda, .deterministic = options_.deterministic};
  const auto bound = block_peak_bytes(options_.shape, options_.pass, peak);
  std::vector<PassMeasurement> all;
  all.push_back(time("block forward", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, nullptr); }));
  all.push_back(time("block forward, saving", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, &saved_); }));
  all.push_back(time("block recompute", flops(cost.recompute), nothing,
                     [&] { block.recompute(context, w, input_, saved_); }));
  all.push_back(time(
      "block backward", flops(cost.backward), [&] { block.recompute(context, w, input_, saved_); },
      [&] { block.backward(context, w, input_, saved_, gradient_, gradients_[1]); }));
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = bound;
  }
  if (all.back().peak_bytes != 0) all.back().peak_bytes += gradient_.nbytes();
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure_rest() {
  const PassContext context = {.deterministic = options_.deterministic};
  const engine::Flops cost = engine::head_flops(options_.shape, options_.padded_vocab);
  const Call nothing = [] {};
  const UnitViews w = with_embedding(parameters_);
  const UnitViews gradients = with_embedding(gradients_);
  std::vector<PassMeasurement> all;
  all.push_back(time("head loss", flops(cost.forward), nothing,
                     [&] { model_.head().loss_sum(w, input_, targets_); }));
  all.push_back(time("head loss and gradient", flops(cost.forward + cost.backward), nothing, [&] {
    model_.head().loss_and_gradient(w, input_, targets_, 1e-3, gradients);
  }));
  const auto bound = head_peak_bytes(options_.shape, options_.pass, options_.padded_vocab,
                                     {.cpu = !options_.cuda});
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = bound;
  }
  all.push_back(time("embedding forward", 0, nothing,
                     [&] { model_.unit(0).forward(context, parameters_[0], tokens_, nullptr); }));
  all.push_back(time("embedding backward", 0, nothing, [&] {
    model_.unit(0).backward(context, parameters_[0], tokens_, saved_, gradient_, gradients_[0]);
  }));
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure() {
  std::vector<PassMeasurement> all = measure_block();
  for (PassMeasurement& it : measure_rest()) all.push_back(std::move(it));
  return all;
}

}  // namespace

double PassMeasurement::median_ms() const {
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Status check_device(const ModelBenchOptions& options) {
  if (!options.cuda || DeviceClock::has_cuda()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--device cuda: this build or this machine has no CUDA; use --device cpu");
}

std::vector<PassMeasurement> measure_passes(const ModelBenchOptions& options) {
  at::set_num_threads(options.threads);
  return ModelWorkload(options).measure();
}

}  // namespace sluice::bench
