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

UnitTimes estimate_units(const ModelLayout& model, const PassShape& pass,
                         const EstimateRates& rates) {
  SLUICE_CHECK(rates.matmul_flops_per_s > 0 && rates.copy_bytes_per_s > 0,
               "an estimate needs rates");
  const auto rows = static_cast<double>(pass.rows());
  const double flops_per_s = kMatmulEfficiency * rates.matmul_flops_per_s;
  UnitTimes times(model);
  for (std::size_t i = 0; i < times.kinds.size(); ++i) {
    const UnitKind& kind = model.kind(model.first_of_kinds()[i]);
    const Flops flops = kind.flops(pass.tokens);
    const Traffic bytes = kind.traffic(pass.number_bytes);
    const auto seconds = [&](double operations, double moved) {
      return std::max(rows * operations / flops_per_s, rows * moved / rates.copy_bytes_per_s);
    };
    times.kinds[i].seconds = {.forward_s = seconds(flops.forward, bytes.forward),
                              .recompute_s = seconds(flops.recompute, 0),
                              .backward_s = seconds(flops.backward, bytes.backward)};
  }
  return times;
}

}  // namespace sluice::engine
