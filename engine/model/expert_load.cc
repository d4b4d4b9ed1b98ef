#include "engine/model/expert_load.h"

#include <ATen/ops/zeros.h>

#include "aio/check.h"

namespace sluice::engine {

ExpertLoad::ExpertLoad(const ModelLayout& model, const Options& options, const at::Device& device)
    : options_(options) {
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::int64_t experts = model.kind(unit).experts();
    layer_of_.push_back(experts == 0 ? -1 : static_cast<int>(layers_));
    if (experts == 0) continue;
    SLUICE_CHECK(experts_ == 0 || experts_ == experts, "all layers have as many experts");
    experts_ = experts;
    ++layers_;
  }
  if (!exists()) return;
  const auto on_device = at::TensorOptions().device(device);
  rows_ = at::zeros({layers_, experts_}, on_device.dtype(at::kLong));
  if (!balances()) return;
  chosen_ = at::zeros({options.micro_batches, experts_}, on_device.dtype(at::kLong));
  probabilities_ = at::zeros({options.micro_batches, experts_}, on_device.dtype(at::kDouble));
}

void ExpertLoad::begin_step() {
  losses_.clear();
  if (exists()) rows_.zero_();
}

void ExpertLoad::begin_wave() {
  gradients_.clear();
  if (!balances()) return;
  chosen_.zero_();
  probabilities_.zero_();
}

const RoutedTokens* ExpertLoad::counted(int unit, std::size_t micro_batch) {
  if (!exists() || layer(unit) < 0) return nullptr;
  const auto m = static_cast<std::int64_t>(micro_batch);
  counted_ = {.rows = rows_.select(0, layer(unit))};
  if (balances()) {
    counted_.chosen = chosen_.select(0, m);
    counted_.probabilities = probabilities_.select(0, m);
  }
  return &counted_;
}

void ExpertLoad::end_forward(std::size_t micro_batches, std::int64_t tokens, double scale) {
  if (!balances()) return;
  const auto experts = static_cast<double>(experts_);
  const double rows = static_cast<double>(layers_) * static_cast<double>(tokens);
  for (std::size_t m = 0; m < micro_batches; ++m) {
    const auto index = static_cast<std::int64_t>(m);
    const at::Tensor shares = chosen_.select(0, index).to(at::kDouble).div_(rows);
    // BLAS's dot would add in an order that depends on the alignment of the micro-batch's row.
    losses_.push_back(shares.mul(probabilities_.select(0, index)).sum().mul_(experts / rows));
    gradients_.push_back(shares.mul(options_.coefficient * scale * experts / rows));
  }
}

const at::Tensor* ExpertLoad::gradient(int unit, std::size_t micro_batch) const {
  if (!balances() || layer(unit) < 0) return nullptr;
  return &gradients_[micro_batch];
}

std::vector<std::int64_t> ExpertLoad::rows() const {
  if (!exists()) return {};
  const at::Tensor host = rows_.cpu();
  const auto* const first = host.const_data_ptr<std::int64_t>();
  return {first, first + host.numel()};
}

}  // namespace sluice::engine
