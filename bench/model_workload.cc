#include "bench/model_workload.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <map>

#include "bench/device_clock.h"
#include "engine/families/make_model.h"

namespace sluice::bench {
namespace {

using engine::Model;
using engine::PassContext;
using engine::Saved;
using engine::UnitViews;

constexpr double kInitialDeviation = 0.02;
constexpr int kWarmUps = 3;

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

class ModelWorkload {
 public:
  explicit ModelWorkload(const ModelBenchOptions& options)
      : options_(options),
        made_(engine::make_model({.shape = options.shape, .padded_vocab = options.padded_vocab})),
        model_(*made_),
        layout_(model_.layout()),
        clock_(options.cuda),
        device_(options.cuda ? at::kCUDA : at::kCPU),
        numbers_(at::TensorOptions().dtype(dtype_of(options.dtype)).device(device_)) {
    at::manual_seed(1);
    for (const int unit : layout_.first_of_kinds()) {
      add_unit(unit);
      for (const int lender : layout_.lenders(unit)) add_unit(lender);
    }
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
    if (parameters_.contains(unit)) return;
    const engine::UnitLayout& layout = layout_.layout(unit);
    const auto elements = static_cast<std::int64_t>(layout.slot_elements);
    const at::Tensor flat = at::randn({elements}, numbers_).mul_(kInitialDeviation);
    const UnitViews& parameters = parameters_.try_emplace(unit, layout, flat).first->second;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      if (layout.parameters[i].initial_value == 0) continue;
      at::Tensor parameter = parameters[static_cast<int>(i)];
      parameter.add_(layout.parameters[i].initial_value);
    }
    gradients_.try_emplace(unit, layout, at::zeros({elements}, numbers_.dtype(at::kFloat)));
  }

  // `before` is not timed, but memory that it saves counts.
  PassMeasurement time(const std::string& name, double flops, const Call& before, const Call& call);
  std::vector<PassMeasurement> measure_block(int unit);
  std::vector<PassMeasurement> measure_rest();
  // The unit's own views, followed by those that it borrows.
  UnitViews bound(const std::map<int, UnitViews>& units, int unit) const {
    std::vector<const UnitViews*> lent;
    for (const int lender : layout_.lenders(unit)) lent.push_back(&units.at(lender));
    return engine::with_borrowed(layout_, unit, units.at(unit), lent);
  }
  engine::PeakOptions peak_options() const {
    return {.cpu = !options_.cuda, .deterministic = options_.deterministic};
  }
  double flops(double per_token) const {
    return per_token * static_cast<double>(options_.pass.micro_batch * options_.pass.tokens);
  }

  const ModelBenchOptions& options_;
  const std::unique_ptr<Model> made_;
  const Model& model_;
  const engine::ModelLayout& layout_;
  DeviceClock clock_;
  at::Device device_;
  at::TensorOptions numbers_;
  std::map<int, UnitViews> parameters_;  // by unit: the first of each kind, and their lenders
  std::map<int, UnitViews> gradients_;
  at::Tensor input_;
  at::Tensor gradient_;
  at::Tensor tokens_;
  at::Tensor targets_;
  Saved saved_;
};

PassMeasurement ModelWorkload::time(const std::string& name, double flops, const Call& before,
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

std::vector<PassMeasurement> ModelWorkload::measure_block(int unit) {
  const engine::ModelUnit& block = model_.unit(unit);
  const engine::UnitKind& kind = layout_.kind(unit);
  const UnitViews w = bound(parameters_, unit);
  const UnitViews gradients = bound(gradients_, unit);
  const PassContext context = {
      .unit = unit, .deterministic = options_.deterministic, .overwrites = true};
  const engine::Flops cost = kind.flops(options_.pass.tokens);
  const Call nothing = [] {};
  const auto most = kind.peak_bytes(options_.pass, peak_options());
  std::vector<PassMeasurement> all;
  all.push_back(time(kind.name() + " forward", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, nullptr); }));
  all.push_back(time(kind.name() + " forward, saving", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, &saved_); }));
  all.push_back(time(kind.name() + " recompute", flops(cost.recompute), nothing,
                     [&] { block.recompute(context, w, input_, saved_); }));
  all.push_back(time(
      kind.name() + " backward", flops(cost.backward),
      [&] { block.recompute(context, w, input_, saved_); },
      [&] { block.backward(context, w, input_, saved_, gradient_, gradients); }));
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = most;
  }
  if (all.back().peak_bytes != 0) all.back().peak_bytes += gradient_.nbytes();
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure_rest() {
  const PassContext context = {.deterministic = options_.deterministic};
  const engine::UnitKind& kind = layout_.kind(layout_.head());
  const engine::Flops cost = kind.flops(options_.pass.tokens);
  const Call nothing = [] {};
  const UnitViews w = bound(parameters_, layout_.head());
  const UnitViews gradients = bound(gradients_, layout_.head());
  std::vector<PassMeasurement> all;
  all.push_back(time("head loss", flops(cost.forward), nothing,
                     [&] { model_.head().loss_sum(w, input_, targets_); }));
  all.push_back(time("head loss and gradient", flops(cost.forward + cost.backward), nothing, [&] {
    model_.head().loss_and_gradient(w, input_, targets_, 1e-3, gradients);
  }));
  const auto most = kind.peak_bytes(options_.pass, peak_options());
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = most;
  }
  all.push_back(time("embedding forward", 0, nothing, [&] {
    model_.unit(0).forward(context, parameters_.at(0), tokens_, nullptr);
  }));
  all.push_back(time("embedding backward", 0, nothing, [&] {
    model_.unit(0).backward(context, parameters_.at(0), tokens_, saved_, gradient_,
                            gradients_.at(0));
  }));
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure() {
  std::vector<PassMeasurement> all;
  for (const int unit : layout_.first_of_kinds()) {
    if (!layout_.is_block(unit)) continue;
    for (PassMeasurement& it : measure_block(unit)) all.push_back(std::move(it));
  }
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
