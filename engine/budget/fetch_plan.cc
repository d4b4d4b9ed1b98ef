#include "engine/budget/fetch_plan.h"

#include <algorithm>

#include "engine/budget/fetch_limits.h"

namespace sluice::engine {
namespace {

// An evaluation has no backward that would use a block again.
FetchRequest fetch_request(const RunSpec& spec) {
  const config::Config& config = spec.config;
  // If the plan chooses which units stay on the GPU, slots are only for units that pass through.
  const bool reuses =
      spec.trains() && config.zero.offload_param.device != config::OffloadDevice::kAuto;
  return {.prefetch_units = config.placement.prefetch_units,
          .prefetch_bucket_elements = config.zero.prefetch_bucket_elements,
          .max_live_elements = config.zero.max_live_elements,
          .max_reuse_distance_elements = reuses ? config.zero.max_reuse_distance_elements : 0};
}

UnitSizes unit_sizes(const ModelLayout& model) {
  // In a module a block may have no parameters, or none that is trained.
  UnitSizes sizes{.block_elements = 1, .blocks = model.blocks()};
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements = model.base_layout(unit).elements;
    if (model.is_block(unit))
      sizes.block_elements = std::max(sizes.block_elements, elements);
    else
      sizes.end_elements += elements;
  }
  return sizes;
}

// Lowers the slots to what fits next to everything else that the placement needs on the GPU.
void fit_slots(std::uint64_t room_bytes, const MemoryLedger& ledger, MemoryLedger::Places places,
               int blocks, FetchLimits& limits, std::vector<std::string>& notes) {
  // Blocks that stay on the GPU need no slot.
  const int wanted = std::min(limits.block_slots, ledger.streamed_blocks(places));
  if (wanted == 0) return;
  const std::uint64_t all = ledger.slot_bytes(places, wanted);
  const std::uint64_t needed = ledger.bytes(places).gpu - ledger.amounts(places).gpu.slots + all;
  const std::uint64_t one = all - ledger.slot_bytes(places, wanted - 1);
  if (needed <= room_bytes) return;
  const std::uint64_t too_many = (needed - room_bytes + one - 1) / one;
  const auto wanted_slots = static_cast<std::uint64_t>(wanted);
  const int before = limits.block_slots;
  lower_block_slots(limits, blocks,
                    static_cast<int>(wanted_slots - std::min(too_many, wanted_slots)));
  if (limits.block_slots == before) return;
  notes.push_back("zero_optimization.stage3_max_live_parameters and its neighbours ask for " +
                  std::to_string(before) + " blocks on the GPU, where " +
                  std::to_string(limits.block_slots) +
                  " fit: the others are fetched again for backward");
}

}  // namespace

FetchPlan plan_fetching(const RunSpec& spec, const MemoryLedger& ledger,
                        std::span<const offload::UnitPlacement> places, const FetchRoom& room) {
  const UnitSizes sizes = unit_sizes(spec.model);
  const FetchRequest request = fetch_request(spec);
  FetchLimits limits =
      spec.on_gpu ? fetch_limits(sizes, request) : host_fetch_limits(sizes, request);
  FetchPlan plan;
  if (spec.on_gpu && room.slots > 0)
    lower_block_slots(limits, spec.model.blocks(), room.slots);
  else if (spec.on_gpu && room.gpu_bytes)
    fit_slots(*room.gpu_bytes, ledger, places, spec.model.blocks(), limits, plan.notes);
  plan.prefetch_units = limits.prefetch_units;
  plan.block_slots = limits.block_slots;
  if (spec.on_gpu || ledger.amounts(places).nvme.params > 0)
    plan.notes.insert(plan.notes.end(), limits.raised.begin(), limits.raised.end());
  return plan;
}

}  // namespace sluice::engine
