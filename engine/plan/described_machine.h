// The speeds of a machine that is described instead of measured.
//
// Threads: one.
// Errors:  those of probing this machine, for parts that are not described; the GPU is never probed
//          if any part of it is described.
#pragma once

#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

// This machine, with the described parts in place of its own. A GPU is described as a whole: values
// that are not given come from kAssumedGpu.
Result<ProbeReport> described_machine(const PlanSubject& subject, const PlanRunOptions& options);

// Fills in the values of a machine elsewhere that neither it nor a budget gives, and lists them in
// `assumed`. For a described GPU without drives, only the drives are assumed, if the run's are not
// here.
DescribedMachine with_assumptions(DescribedMachine machine, const config::Config& config,
                                  bool drives_are_here, std::vector<std::string>& assumed);
// The values that a plan for a described machine takes from this machine.
std::vector<std::string> from_here(const DescribedMachine& machine, const config::Config& config,
                                   bool on_gpu);
// The rated endurance (TBW) that common drives with this capacity have.
double assumed_tbw(double drive_bytes);

// A card of 24 GB on PCIe 4, from data sheets (RTX 4090, A10 to A5000: rounded down).
struct AssumedGpu {
  double bus_gb_per_s = 32;
  double tflops = 125;
  double memory_gb_per_s = 768;
  double memory_gib = 23.5;
};
inline constexpr AssumedGpu kAssumedGpu;

// Defaults for a machine elsewhere: 64 GiB of two-channel DDR5, and a 1 TB NVMe drive on PCIe 4.
struct AssumedHost {
  double cpu_gib = 56;
  double ram_gb_per_s = 50;
  double nvme_gib = 900;
  double drive_read_gb_per_s = 6;
  double drive_write_gb_per_s = 3;
};
inline constexpr AssumedHost kAssumedHost;

// Default rates between ranks, if they are neither given nor measured. On GPUs: cards as above,
// linked only by the bus, and hosts on a 100 Gbit/s network. On the CPU: processes that compute on
// a host's cores.
struct AssumedLink {
  double gb_per_s = 0;
  double network_gb_per_s = 0;
  double latency_us = 0;
};
inline constexpr AssumedLink kAssumedLink{20, 12.5, 30};
inline constexpr AssumedLink kAssumedHostLink{1, 1, 200};

// The described link, with defaults for values that are not given.
offload::LinkSpeeds described_link(const DescribedMachine& given, bool on_gpu);

}  // namespace sluice::engine
