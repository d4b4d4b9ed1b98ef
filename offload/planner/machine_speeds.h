// MachineSpeeds: what a machine's resources do per second, as the planner uses them. Measured by
// the probe (engine/probe/machine_probe.h), or given by the user for a machine that is not
// available.
//
// Rates in bytes count 10^9 bytes to the GB; 0: there is no such resource.
#pragma once

#include "offload/planner/link_speeds.h"
#include "swap/stripe_weights.h"

namespace sluice::offload {

struct MachineSpeeds {
  DuplexRates bus;     // between pinned host memory and GPU
  DuplexRates drives;  // all NVMe paths together, with the run's distribution of stripes
  double host_copy_bytes_per_s = 0;     // DRAM, bytes read plus bytes written, all threads
  double cpu_adamw_elements_per_s = 0;  // a step with the run's form, all threads, state in RAM
  double gpu_copy_bytes_per_s = 0;      // GPU memory, bytes read plus bytes written
  double gpu_adamw_elements_per_s = 0;
  double gpu_matmul_flops_per_s = 0;  // dense, in the run's 16-bit type
  LinkSpeeds link;                    // between ranks
};

// The speeds of one of the host's ranks while all of them do the same: an equal part of cores, RAM
// and drives, and its own GPU and bus.
MachineSpeeds speeds_of_rank(const MachineSpeeds& host, const Topology& ranks);

}  // namespace sluice::offload
