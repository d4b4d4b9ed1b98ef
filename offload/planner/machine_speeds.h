// MachineSpeeds: what a machine's resources do per second, as the planner uses them. Measured by
// the probe (engine/probe/machine_probe.h), or stated by the user for a machine that is not at
// hand.
//
// Rates in bytes count 10^9 bytes to the GB; 0: there is no such resource.
#pragma once

#include "offload/planner/link_speeds.h"
#include "swap/stripe_weights.h"

namespace sluice::offload {

struct MachineSpeeds {
  DuplexRates bus;                      // pinned host memory and GPU
  DuplexRates drives;                   // all NVMe paths together, as a run's stripes are dealt
  double host_copy_bytes_per_s = 0;     // DRAM, bytes read plus bytes written, all threads
  double cpu_adamw_elements_per_s = 0;  // the step of the run's form, all threads, state in RAM
  double gpu_copy_bytes_per_s = 0;      // GPU memory, bytes read plus bytes written
  double gpu_adamw_elements_per_s = 0;
  double gpu_matmul_flops_per_s = 0;  // dense, in the run's 16-bit type
  LinkSpeeds link;                    // of several ranks
};

// What one of the host's ranks has of it while all of them do the same: an equal part of cores, RAM
// and drives, a GPU and its bus to itself.
MachineSpeeds speeds_of_rank(const MachineSpeeds& host, const RankGroup& ranks);

}  // namespace sluice::offload
