#include "offload/planner/placement.h"

namespace sluice::offload {
namespace {

std::uint64_t more_than(std::uint64_t bytes, std::uint64_t budget) {
  return bytes > budget ? bytes - budget : 0;
}

}  // namespace

TierBytes TierBytes::beyond(const TierBytes& budget) const {
  return {.gpu = more_than(gpu, budget.gpu),
          .cpu = more_than(cpu, budget.cpu),
          .nvme = more_than(nvme, budget.nvme)};
}

}  // namespace sluice::offload
