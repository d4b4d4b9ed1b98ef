#include "engine/probe/unit_times.h"

#include <algorithm>

#include "aio/check.h"

namespace sluice::engine {

UnitTimes::UnitTimes(const ModelLayout& model) {
  for (const int unit : model.first_of_kinds())
    kinds.push_back({.kind = model.kind(unit).name(), .seconds = {}});
}

const UnitSeconds& UnitTimes::of(std::string_view kind) const {
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const OfKind& it) { return it.kind == kind; });
  SLUICE_CHECK(found != kinds.end(), "times of another model");
  return found->seconds;
}

namespace {

// The approximate number of kernels that a block launches.
constexpr int kForwardKernels = 14;
constexpr int kBackwardKernels = 30;

// Narrow heads and short sequences use fewer multiprocessors. Measured for cuDNN's and
// FlashAttention's kernels on an H200: GPT-2 XL at 128 and 1,024 tokens, Qwen2.5-7B at 1,024, and
// Llama 3.1 at 32,768.
double attention_flops_per_s(const UnitKind& kind, const PassShape& pass,
                             const EstimateRates& rates) {
  constexpr double kWideHead = 128;
  constexpr double kHalfTokens = 480;  // the length with half of the full rate
  if (rates.attention_flops_per_s <= 0) return rates.product_flops_per_s;
  const auto head = static_cast<double>(kind.kv_shape().head_dim);
  const auto tokens = static_cast<double>(pass.tokens);
  return rates.attention_flops_per_s * std::min(1.0, head > 0 ? head / kWideHead : 1.0) * tokens /
         (tokens + kHalfTokens);
}

}  // namespace

UnitSeconds fp8_seconds(const UnitKind& kind, const PassShape& pass, const EstimateRates& rates) {
  const auto rows = static_cast<double>(pass.rows());
  const Fp8Work work = kind.fp8_work(pass.number_bytes);
  const double saved_s_per_flop =
      rates.fp8_flops_per_s > 0 ? 1 / rates.product_flops_per_s - 1 / rates.fp8_flops_per_s : 0;
  const auto seconds = [&](double flops, double of_token, double of_pass) {
    return (rows * of_token + of_pass) / rates.kernel_bytes_per_s - rows * flops * saved_s_per_flop;
  };
  return {
      .forward_s = seconds(work.flops.forward, work.of_token.forward, work.of_passes.forward),
      .recompute_s = seconds(work.flops.recompute, work.of_token.forward, work.of_passes.forward),
      .backward_s = seconds(work.flops.backward, work.of_token.backward, work.of_passes.backward)};
}

UnitTimes estimate_units(const ModelLayout& model, const PassShape& pass,
                         const EstimateRates& rates) {
  SLUICE_CHECK(rates.product_flops_per_s > 0 && rates.kernel_bytes_per_s > 0,
               "an estimate needs rates");
  const auto rows = static_cast<double>(pass.rows());
  UnitTimes times(model);
  for (std::size_t i = 0; i < times.kinds.size(); ++i) {
    const UnitKind& kind = model.kind(model.first_of_kinds()[i]);
    const Flops flops = kind.flops(pass.tokens);
    const Flops products = kind.flops(0);  // independent of the sequence length
    const Traffic bytes = kind.traffic(pass.number_bytes);
    const double attention_rate = attention_flops_per_s(kind, pass, rates);
    const auto seconds = [&](double all, double product, double moved, int kernels) {
      if (all <= 0 && moved <= 0) return 0.0;
      return rows * (product / rates.product_flops_per_s + (all - product) / attention_rate +
                     moved / rates.kernel_bytes_per_s) +
             kernels * rates.gap_s;
    };
    const double again = flops.forward > 0 ? flops.recompute / flops.forward : 0;
    times.kinds[i].seconds = {
        .forward_s = seconds(flops.forward, products.forward, bytes.forward, kForwardKernels),
        .recompute_s =
            seconds(flops.recompute, products.recompute, again * bytes.forward, kForwardKernels),
        .backward_s = seconds(flops.backward, products.backward, bytes.backward, kBackwardKernels)};
    times.kinds[i].seconds += fp8_seconds(kind, pass, rates);
  }
  return times;
}

}  // namespace sluice::engine
