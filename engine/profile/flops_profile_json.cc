#include <nlohmann/json.hpp>

#include "engine/profile/flops_profile.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

Json phases_of(const FlopsProfile& profile) {
  Json phases = Json::object();
  for (std::size_t i = 0; i < kPassPhases; ++i) {
    const auto phase = static_cast<PassPhase>(i);
    phases[phase_name(phase)] = {{"seconds", profile.passes.seconds(phase)},
                                 {"flops", phase_flops(profile, phase)}};
  }
  phases["await update"] = {{"seconds", profile.update_exposed_s}, {"flops", 0}};
  return phases;
}

Json units_of(const FlopsProfile& profile) {
  Json units = Json::array();
  for (int u = 0; u < static_cast<int>(profile.units.size()); ++u) {
    const UnitFlops& unit = profile.units[static_cast<std::size_t>(u)];
    Json phases = Json::object();
    for (std::size_t i = 0; i < kPassPhases; ++i) {
      const auto phase = static_cast<PassPhase>(i);
      const double seconds = profile.passes.seconds(u, phase);
      const double flops = unit_phase_flops(profile, u, phase);
      if (seconds > 0 || flops > 0)
        phases[phase_name(phase)] = {{"seconds", seconds}, {"flops", flops}};
    }
    units.push_back({{"unit", unit.name},
                     {"kind", unit.kind},
                     {"parameters", unit.parameters},
                     {"macs_per_token", unit.macs_of_token},
                     {"flops_per_token",
                      {{"forward", unit.of_token.forward},
                       {"backward", unit.of_token.backward},
                       {"recompute", unit.of_token.recompute}}},
                     {"phases", std::move(phases)}});
  }
  return units;
}

}  // namespace

std::string flops_profile_json(const FlopsProfile& profile) {
  double trained = 0;
  for (const UnitFlops& unit : profile.units)
    trained += trained_flops(unit.of_token) * profile.tokens();
  Json json = {{"micro_batch", profile.micro_batch},
               {"micro_batches", profile.micro_batches},
               {"sequence_tokens", profile.sequence_tokens},
               {"ranks", profile.ranks},
               {"step_s", profile.step_s},
               {"update_s", profile.update_s},
               {"update_exposed_s", profile.update_exposed_s},
               {"flops", trained},
               {"flops_per_s", profile.step_s > 0 ? Json(trained / profile.step_s) : Json()},
               {"limit_flops_per_s",
                profile.limit_flops_per_s > 0 ? Json(profile.limit_flops_per_s) : Json()},
               {"phases", phases_of(profile)},
               {"units", units_of(profile)}};
  if (profile.step > 0) json["step"] = profile.step;
  return json.dump();
}

}  // namespace sluice::engine
