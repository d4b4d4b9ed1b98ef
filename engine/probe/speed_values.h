// The numbers of each measurement under their names in the cache file.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "engine/probe/gpu_speeds.h"
#include "engine/probe/host_probe.h"
#include "engine/probe/unit_times.h"
#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

using SpeedValues = std::map<std::string, double>;

template <typename Visit>
void visit_values(HostSpeeds& speeds, const Visit& visit) {
  visit("copy_bytes_per_s", speeds.copy_bytes_per_s);
  visit("adamw_elements_per_s", speeds.adamw_elements_per_s);
}

// For drives, in is read and out is written. For the bus, in is host to GPU and out is GPU to host.
template <typename Visit>
void visit_values(offload::DuplexRates& rates, const Visit& visit) {
  visit("in_bytes_per_s", rates.in_bytes_per_s);
  visit("out_bytes_per_s", rates.out_bytes_per_s);
  visit("in_both_bytes_per_s", rates.in_both_bytes_per_s);
  visit("out_both_bytes_per_s", rates.out_both_bytes_per_s);
}

template <typename Visit>
void visit_values(GpuSpeeds& speeds, const Visit& visit) {
  visit_values(speeds.bus,
               [&](const char* name, double& value) { visit(std::string("bus_") + name, value); });
  visit("pin_tried_bytes", speeds.pin.tried_bytes);
  visit("pinned_bytes", speeds.pin.pinned_bytes);
  visit("copy_bytes_per_s", speeds.copy_bytes_per_s);
  visit("adamw_elements_per_s", speeds.adamw_elements_per_s);
  visit("matmul_flops_per_s", speeds.matmul_flops_per_s);
}

template <typename Visit>
void visit_values(offload::LinkSpeeds& link, const Visit& visit) {
  visit("gather_bytes_per_s", link.gather_bytes_per_s);
  visit("exchange_bytes_per_s", link.exchange_bytes_per_s);
  visit("latency_s", link.latency_s);
  visit("network_bytes_per_s", link.network_bytes_per_s);
  visit("network_latency_s", link.network_latency_s);
  visit_values(link.bus_together, [&](const char* name, double& value) {
    visit(std::string("bus_together_") + name, value);
  });
}

template <typename Visit>
void visit_values(UnitTimes& times, const Visit& visit) {
  for (UnitTimes::OfKind& it : times.kinds) {
    visit(it.kind + "_forward_s", it.seconds.forward_s);
    visit(it.kind + "_recompute_s", it.seconds.recompute_s);
    visit(it.kind + "_backward_s", it.seconds.backward_s);
  }
}

template <typename Speeds>
SpeedValues values_of(Speeds speeds) {
  SpeedValues values;
  visit_values(speeds, [&](const std::string& name, double& value) { values[name] = value; });
  return values;
}

// nullopt if a value is missing. If the set of values varies, `speeds` has the expected ones.
template <typename Speeds>
std::optional<Speeds> from_values(const SpeedValues& values, Speeds speeds = {}) {
  bool complete = !values.empty();
  visit_values(speeds, [&](const std::string& name, double& value) {
    const auto found = values.find(name);
    complete = complete && found != values.end();
    if (found != values.end()) value = found->second;
  });
  if (!complete || values_of(speeds).empty()) return std::nullopt;
  return speeds;
}

}  // namespace sluice::engine
