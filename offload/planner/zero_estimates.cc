#include "offload/planner/zero_estimates.h"

#include <algorithm>

namespace sluice::offload {
namespace {

constexpr double kParam16 = 2;
constexpr double kParam32 = 4;
// 16-bit and fp32 gradient, fp32 parameter, two fp32 moments.
constexpr double kGradientsAndState = 18;
// What ZeRO-2 offloads: fp32 gradient, parameter and moments. ZeRO-3 offloads the same and, with
// parameters offloaded, also their 16-bit copy.
constexpr double kOffloaded = 16;
constexpr double kBufferFactor = 1.5;  // for host memory

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(bytes); }

// Each process creates the whole model in fp32 once.
double made_everywhere(const ZeroModel& model, const ZeroMachines& machines) {
  return static_cast<double>(model.parameters) * kParam32 *
         static_cast<double>(machines.gpus_per_node);
}

ZeroEstimate zero3(const ZeroModel& model, const ZeroMachines& machines, ZeroEstimate estimate) {
  const auto parameters = static_cast<double>(model.parameters);
  const auto gpus = static_cast<double>(machines.gpus_per_node * machines.nodes);
  const double one_layer = kParam32 * static_cast<double>(model.largest_layer_parameters);
  double host = 0;
  double gpu = 0;
  if (estimate.offload_optimizer) {
    const double each = kOffloaded + (estimate.offload_params ? kParam16 : 0);
    host = parameters * each / static_cast<double>(machines.nodes);
    gpu = estimate.offload_params ? 0 : kParam16 * parameters / gpus;
    if (!estimate.zero_init) host = std::max(host, made_everywhere(model, machines));
  } else {
    gpu = kGradientsAndState * parameters / gpus;
    host = estimate.zero_init ? one_layer * static_cast<double>(machines.gpus_per_node)
                              : made_everywhere(model, machines);
  }
  estimate.cpu_bytes = whole(host * kBufferFactor);
  estimate.gpu_bytes = whole(one_layer) + whole(gpu);
  return estimate;
}

}  // namespace

std::vector<ZeroEstimate> zero2_estimates(const ZeroModel& model, const ZeroMachines& machines) {
  const auto parameters = static_cast<double>(model.parameters);
  const auto gpus = static_cast<double>(machines.gpus_per_node * machines.nodes);
  const double offloaded = parameters * std::max(kParam32 * gpus, kOffloaded);
  return {
      {.offload_optimizer = true,
       .cpu_bytes = whole(offloaded * kBufferFactor),
       .gpu_bytes = whole(kParam16 * parameters)},
      {.offload_optimizer = false,
       .cpu_bytes = whole(made_everywhere(model, machines) * kBufferFactor),
       .gpu_bytes = whole(kParam16 * parameters) + whole(kGradientsAndState * parameters / gpus)}};
}

std::vector<ZeroEstimate> zero3_estimates(const ZeroModel& model, const ZeroMachines& machines) {
  std::vector<ZeroEstimate> estimates;
  for (const ZeroEstimate& asked : {ZeroEstimate{.offload_optimizer = true, .offload_params = true},
                                    ZeroEstimate{.offload_optimizer = true}, ZeroEstimate{}}) {
    for (const bool zero_init : {true, false}) {
      ZeroEstimate estimate = asked;
      estimate.zero_init = zero_init;
      estimates.push_back(zero3(model, machines, estimate));
    }
  }
  return estimates;
}

}  // namespace sluice::offload
