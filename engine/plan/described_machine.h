// The speeds of a machine that is described, not measured.
//
// Threads: one.
// Errors:  those of the probe of this machine, for what is left open and is not the GPU's.
#pragma once

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

// This machine with the described parts in place of its own. A GPU is described as a whole: what is
// not given comes from kAssumedGpu.
Result<ProbeReport> described_machine(const config::Config& config, const ModelLayout& model,
                                      const PlanRunOptions& options);

// A card of 24 GB behind PCIe 4 (RTX 4090, A10 to A5000: rounded down).
struct AssumedGpu {
  double bus_gb_per_s = 22;
  double tflops = 100;
  double memory_gb_per_s = 850;
  double memory_gib = 23.5;
};
inline constexpr AssumedGpu kAssumedGpu;

// What ranks exchange where nothing is said or measured: cards of that kind, which have no link but
// the bus, and hosts on a network of 100 Gbit/s; processes that compute on a host's cores.
struct AssumedLink {
  double gb_per_s = 0;
  double network_gb_per_s = 0;
  double latency_us = 0;
};
inline constexpr AssumedLink kAssumedLink{20, 12.5, 30};
inline constexpr AssumedLink kAssumedHostLink{1, 1, 200};

// As described; what is not given is assumed.
offload::LinkSpeeds described_link(const DescribedMachine& given, bool on_gpu);

}  // namespace sluice::engine
