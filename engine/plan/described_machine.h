// The speeds of a machine that is described, not measured.
//
// Threads: one.
// Errors:  those of the probe of this machine, for what is left open and is not the GPU's.
#pragma once

#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

// This machine with the described parts in place of its own. A GPU is described as a whole: what is
// not given comes from kAssumedGpu.
Result<ProbeReport> described_machine(const PlanSubject& subject, const PlanRunOptions& options);

// What a machine that is elsewhere has, as far as neither it nor a budget says so; `assumed` names
// it. Of a described GPU without drives the drives alone, where the run's are not here.
DescribedMachine with_assumptions(DescribedMachine machine, const config::Config& config,
                                  bool drives_are_here, std::vector<std::string>& assumed);
// What a plan for a described machine has of this one.
std::vector<std::string> from_here(const DescribedMachine& machine, const config::Config& config,
                                   bool on_gpu);
// TB that drives of so many bytes are rated to be written: as given, or as common drives are.
double rated_tbw(const DescribedMachine& machine, double drive_bytes);

// A card of 24 GB on PCIe 4, by its data sheet (RTX 4090, A10 to A5000: rounded down).
struct AssumedGpu {
  double bus_gb_per_s = 32;
  double tflops = 125;
  double memory_gb_per_s = 768;
  double memory_gib = 23.5;
};
inline constexpr AssumedGpu kAssumedGpu;

// A machine that is elsewhere, where nothing else is said of it: 64 GiB of two channels of DDR5,
// and an NVMe drive of 1 TB on PCIe 4.
struct AssumedHost {
  double cpu_gib = 56;
  double ram_gb_per_s = 50;
  double nvme_gib = 900;
  double drive_read_gb_per_s = 6;
  double drive_write_gb_per_s = 3;
};
inline constexpr AssumedHost kAssumedHost;

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
