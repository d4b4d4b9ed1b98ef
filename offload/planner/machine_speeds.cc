#include "offload/planner/machine_speeds.h"

#include <algorithm>

namespace sluice::offload {
namespace {

void divide(DuplexRates& rates, double by) {
  for (double* const rate : {&rates.in_bytes_per_s, &rates.out_bytes_per_s,
                             &rates.in_both_bytes_per_s, &rates.out_both_bytes_per_s})
    *rate /= by;
}

// Limits the rate, if the limit is known.
void lower(double& rate, double most) {
  if (most > 0) rate = std::min(rate, most);
}

}  // namespace

MachineSpeeds speeds_of_rank(const MachineSpeeds& host, const Topology& ranks) {
  MachineSpeeds speeds = host;
  if (ranks.local_world == 1) return speeds;
  const double all = ranks.local_world;
  divide(speeds.drives, all);
  speeds.host_copy_bytes_per_s /= all;
  speeds.cpu_adamw_elements_per_s /= all;
  const DuplexRates& together = host.link.bus_together;
  lower(speeds.bus.in_bytes_per_s, together.in_bytes_per_s);
  lower(speeds.bus.out_bytes_per_s, together.out_bytes_per_s);
  lower(speeds.bus.in_both_bytes_per_s, together.in_both_bytes_per_s);
  lower(speeds.bus.out_both_bytes_per_s, together.out_both_bytes_per_s);
  return speeds;
}

}  // namespace sluice::offload
