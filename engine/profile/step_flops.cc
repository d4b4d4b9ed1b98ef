#include "engine/profile/step_flops.h"

namespace sluice::engine {
namespace {

// A query sees (length + 1) / 2 keys on average, so all of T keys correspond to 2T - 1 tokens.
double macs(const UnitKind& kind, std::int64_t tokens) {
  constexpr double kOperations = 2;
  return kind.flops(2 * tokens - 1).forward / kOperations;
}

}  // namespace

std::vector<UnitFlops> unit_flops(const ModelLayout& model, std::int64_t tokens) {
  std::vector<UnitFlops> units;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitKind& kind = model.kind(unit);
    std::uint64_t parameters = model.layout(unit).parameter_elements();
    if (model.has_frozen()) parameters += model.frozen(unit).parameter_elements();
    units.push_back({.name = model.base_layout(unit).name,
                     .kind = kind.name(),
                     .role = kind.role(),
                     .parameters = parameters,
                     .of_token = kind.flops(tokens),
                     .macs_of_token = macs(kind, tokens)});
  }
  return units;
}

Flops flops_of_token(const ModelLayout& model, std::int64_t tokens) {
  Flops all;
  for (int unit = 0; unit < model.units(); ++unit) {
    const Flops flops = model.kind(unit).flops(tokens);
    all.forward += flops.forward;
    all.backward += flops.backward;
    all.recompute += flops.recompute;
  }
  return all;
}

}  // namespace sluice::engine
