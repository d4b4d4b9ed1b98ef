#include "engine/budget/memory_ledger.h"

#include <algorithm>
#include <numeric>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/budget/base_form.h"
#include "engine/budget/configured_model.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/budget/gradient_plan.h"
#include "engine/budget/param_plan.h"
#include "engine/budget/resolved_placement.h"
#include "engine/budget/state_plan.h"
#include "offload/params/param_layout.h"

namespace sluice::engine {
namespace {

using offload::StateFootprint;
using offload::Tier;
using offload::TierElements;
using offload::UnitPlacement;

// With CUDA, this replaces kProgramBytes. 448 MiB are resident once the context exists; the driver
// and cuBLAS add host memory as kernels are loaded, and the amount varies between runs. In total
// 850 to 970 MiB were measured for runs of 1.8 to 25 GiB, and 1030 MiB for one of 110 GiB that pins
// 45 of them. If pinning is refused, the streams' buffers (HostCopies) add up to 20 MiB.
constexpr std::uint64_t kCudaProgramBytes = 928 * kMiB;
// GPU memory of cuBLAS' workspaces, of kernels as they are loaded, and of LibTorch's rounding.
constexpr std::uint64_t kCudaLibraryBytes = 256 * kMiB;

bool is_cut_as(const TierElements& asked, const UnitPlacement& place) {
  return asked.gpu == place.gpu_elements && asked.cpu == place.cpu_elements &&
         asked.nvme == place.nvme_elements;
}

// The host's form of the units that are streamed.
BaseForm passing_form(const RunSpec& spec) {
  return spec.model.has_frozen() ? BaseForm::of(spec)
                                 : BaseForm{.form = spec.types().form, .ranks = spec.ranks};
}

bool host_updates(const UnitPlacement& place) {
  return place.cpu_elements + place.nvme_elements > 0;
}

}  // namespace

offload::TierBytes MemoryAmounts::by_tier(bool on_gpu) const {
  const std::uint64_t of_compute = compute.activations + compute.kv_cache;
  return {.gpu = on_gpu ? gpu.state + gpu.resident_params + gpu.param_copies + gpu.slots +
                              gpu.gradients + gpu.context + gpu.libraries + of_compute
                        : 0,
          .cpu = host.params + host.param_cache + host.param_slots + host.param_copies +
                 host.state + host.swap_buffers + host.state_transfer + host.program +
                 host.unit_inputs + host.input_buffers + host.gradients + host.gradient_buffers +
                 (on_gpu ? 0 : of_compute),
          .nvme = nvme.params + nvme.state + nvme.unit_inputs + nvme.gradients};
}

std::uint64_t program_bytes(bool on_gpu, bool has_python) {
  const std::uint64_t python = on_gpu ? kPythonOnGpuBytes : kPythonBytes;
  return (on_gpu ? kCudaProgramBytes : kProgramBytes) + (has_python ? python : 0);
}

Result<std::shared_ptr<MemoryLedger>> MemoryLedger::create(const RunSpec& spec, int block_slots) {
  std::shared_ptr<MemoryLedger> ledger(new MemoryLedger(spec, block_slots));
  std::vector<offload::SubGroup> asked;
  if (spec.trains()) {
    SLUICE_ASSIGN_OR_RETURN(asked, asked_sub_groups(spec));
  }
  ledger->add_units(spec, asked);
  return ledger;
}

MemoryLedger::MemoryLedger(const RunSpec& spec, int block_slots)
    : on_gpu_(spec.on_gpu),
      trains_(spec.trains()),
      has_frozen_(spec.model.has_frozen()),
      sums_(spec.sums()),
      world_(spec.ranks.world),
      block_slots_(block_slots),
      sub_group_elements_(engine::sub_group_elements(spec.config)),
      storage_{.form = spec.types().state(),
               .record_elements = record_elements(spec.config),
               .in_place = spec.config.run.checkpoint_in_place},
      swap_buffers_(engine::swap_buffers(spec.config)),
      params_(spec.config.zero.offload_param),
      base_form_(BaseForm::of(spec)),
      gathering_(Gathering::of(spec)),
      activations_(spec),
      save_buffers_(save_buffer_bytes(spec)) {
  if (spec.gradients_on_nvme()) gradient_buffers_ = gradient_buffers(spec);
  fixed_.host.program = program_bytes(on_gpu_, /*has_python=*/spec.names != nullptr);
  if (on_gpu_) {
    fixed_.gpu.context = kCudaContextBytes;
    fixed_.gpu.libraries = kCudaLibraryBytes + nccl_bytes(world_);
  } else if (spec.gradients_on_nvme()) {
    fixed_.host.gradients =
        planned_cpu_sink_bytes_with_nvme(spec.model, spec.types().gradient, sums_);
  } else if (trains_) {
    fixed_.host.gradients =
        planned_cpu_sink_bytes(spec.model, spec.types().gradient, sums_, spec.ranks);
  }
  if (!on_gpu_ && (spec.ranks.world > 1 || gathering_.in_int8)) {
    fixed_.host.param_slots =
        GatheredBuffers(spec.model, spec.types().compute(), spec.ranks.world).bytes();
  }
  if (!on_gpu_) {
    const ModelLayout& passing = has_frozen_ ? spec.model.base() : spec.model;
    const BaseForm form = passing_form(spec);
    fixed_.host.param_slots += pieces_buffer_bytes(passing, form, gathering_);
    for (int unit = 0; unit < passing.units(); ++unit)
      fixed_.host.param_copies += copy_place_bytes(passing.layout(unit), form, gathering_);
  }
  if (!on_gpu_ && has_frozen_)
    fixed_.host.param_slots += GatheredBuffers(spec.model.base(), base_form_).bytes();
  if (!on_gpu_ && has_frozen_ && base_form_.is_encoded())
    fixed_.host.param_slots += UnpackedBuffers(spec.model.base(), spec.types().compute()).bytes();
  if (spec.keeps_keys_and_values()) {
    fixed_.compute.kv_cache = spec.model.kv_cache_bytes(
        generation_context(spec.config), offload::element_bytes(spec.types().compute()));
  }
}

void MemoryLedger::add_units(const RunSpec& spec, std::span<const offload::SubGroup> asked) {
  const NumberTypes types = spec.types();
  const std::vector<offload::UnitSpec> specs = unit_specs(spec);
  const std::vector<TierElements> elements = tier_elements(spec.model.units(), asked);
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(types.form));
  for (int index = 0; index < spec.model.units(); ++index) {
    const UnitLayout& base = spec.model.base_layout(index);
    const offload::RankPart ranks = has_frozen_ ? spec.base_ranks() : spec.ranks;
    const std::uint64_t own_elements = offload::shard_of(base.elements, ranks).elements;
    const std::uint64_t host_bytes =
        has_frozen_ ? base_form_.shard_bytes(base) : own_elements * width;
    const std::uint64_t of_adapters = has_frozen_ ? spec.shard(index).elements : 0;
    const ModelLayout& passing = has_frozen_ ? spec.model.base() : spec.model;
    const int world = ranks.world;  // of units that pass through slots
    units_.push_back(
        {.slot = {.role = slot_role(spec.model, index, trains_ && !has_frozen_),
                  .stays_acquired = passing.stays_acquired(index),
                  .place_bytes = place_bytes(base, types.compute(), world),
                  .streamed_bytes = streamed_bytes(base, types.compute(), base_form_, world),
                  .is_packed = base_form_.is_encoded(),
                  .shard_bytes = shard_place_bytes(base, types.compute(), world),
                  .pieces_bytes =
                      gathering_.in_int8 ? sent_bytes(base, passing_form(spec), gathering_) : 0,
                  .copy_bytes = copy_place_bytes(base, passing_form(spec), gathering_)},
         .elements = own_elements,
         .mapping_bytes = offload::param_mapping_bytes(host_bytes),
         .image_bytes = offload::param_image_bytes(host_bytes),
         .adapter_place_bytes =
             has_frozen_ ? place_bytes(spec.model.layout(index), types.compute(), world_) : 0,
         .adapter_mapping_bytes = offload::param_mapping_bytes(of_adapters * width),
         .gradient = unit_gradient_bytes(spec.model, types.gradient, sums_, index, spec.ranks),
         .gradient_image_bytes = gradient_buffers_ > 0 && spec.shard(index).elements > 0
                                     ? offload::param_image_bytes(gradient_place_bytes(spec, index))
                                     : 0,
         .ranges = specs[static_cast<std::size_t>(index)].ranges,
         .asked = elements[static_cast<std::size_t>(index)],
         .asked_state = {}});
  }
  for (const offload::SubGroup& it : asked)
    units_[static_cast<std::size_t>(it.unit)].asked_state.add(storage_, it.tier, it.elements);
  by_size_ = by_descending(&Unit::image_bytes);
  by_gradient_size_ = by_descending(&Unit::gradient_image_bytes);
}

std::vector<std::size_t> MemoryLedger::by_descending(std::uint64_t Unit::*bytes) const {
  std::vector<std::size_t> order(units_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return units_[a].*bytes > units_[b].*bytes;
  });
  return order;
}

bool MemoryLedger::is_resident(const UnitPlacement& place) const {
  const bool by_state =
      place.gpu_elements > 0 && !has_frozen_ && world_ == 1 && !gathering_.in_int8;
  return on_gpu_ && trains_ && (place.resident || by_state);
}

SlotFootprint::Stays MemoryLedger::stays(const UnitPlacement& place) const {
  using Stays = SlotFootprint::Stays;
  if (is_resident(place)) return Stays::kAll;
  return place.gpu_elements > 0 && !has_frozen_ ? Stays::kShard : Stays::kNothing;
}

Tier MemoryLedger::streamed_tier(const UnitPlacement& place) const {
  if (!has_frozen_) return param_tier(has_frozen_, place);
  UnitPlacement resolved = place;
  resolved.resident = is_resident(place);
  return base_tier(resolved);
}

MemoryAmounts MemoryLedger::amounts(Places places) const {
  SLUICE_CHECK(places.size() == units_.size(), "each unit has its place");
  MemoryAmounts amounts = fixed_;
  add_params(places, amounts);
  if (trains_) {
    const StateFootprint footprint = state(places);
    amounts.host.state = footprint.cpu_bytes();
    amounts.host.swap_buffers = footprint.swap_buffer_bytes(swap_buffers_);
    amounts.host.state_transfer = footprint.transfer_bytes(storage_.form) + save_buffers_;
    amounts.gpu.state = footprint.gpu_bytes();
    amounts.nvme.state = footprint.nvme_bytes();
  }
  amounts.compute.activations = activations_.on_device(places);
  amounts.host.unit_inputs = activations_.on_host(places);
  amounts.host.input_buffers = activations_.spill_buffers(places);
  amounts.nvme.unit_inputs = activations_.on_nvme(places);
  if (on_gpu_) add_gpu(places, amounts);
  if (gradient_buffers_ > 0) add_gradients_on_nvme(places, amounts);
  return amounts;
}

StateFootprint MemoryLedger::state(Places places) const {
  StateFootprint all;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    const UnitPlacement& place = places[i];
    if (is_cut_as(unit.asked, place)) {
      all.add(unit.asked_state);
      continue;
    }
    offload::cut_unit(
        unit.ranges, sub_group_elements_,
        {.gpu = place.gpu_elements, .cpu = place.cpu_elements, .nvme = place.nvme_elements},
        [&](int /*group*/, std::uint64_t /*first*/, std::uint64_t elements, Tier tier) {
          all.add(storage_, tier, elements);
        });
  }
  return all;
}

void MemoryLedger::add_params(Places places, MemoryAmounts& amounts) const {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Tier tier = streamed_tier(places[i]);
    if (tier == Tier::kCpu) amounts.host.params += units_[i].mapping_bytes;
    if (tier == Tier::kNvme) amounts.nvme.params += units_[i].image_bytes;
    if (has_frozen_ && param_tier(has_frozen_, places[i]) == Tier::kCpu)
      amounts.host.params += units_[i].adapter_mapping_bytes;
  }
  if (amounts.nvme.params == 0) return;
  const auto on_nvme = [&](std::size_t i) { return streamed_tier(places[i]) == Tier::kNvme; };
  const auto largest = std::find_if(by_size_.begin(), by_size_.end(), on_nvme);
  offload::ParamBuffers buffers(param_cache_buffers(params_, units_[*largest].elements));
  for (auto it = largest; it != by_size_.end(); ++it)
    if (on_nvme(*it)) buffers.add(units_[*it].image_bytes);
  amounts.host.param_cache = buffers.bytes();
}

void MemoryLedger::add_gpu(Places places, MemoryAmounts& amounts) const {
  SlotFootprint slots;
  SinkFootprint gradients(sums_, world_, /*on_nvme=*/gradient_buffers_ > 0);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    slots.add(unit.slot, stays(places[i]));
    slots.add({.place_bytes = unit.adapter_place_bytes}, SlotFootprint::Stays::kAll);
    if (trains_) gradients.add(unit.gradient, places[i].gpu_elements > 0, host_updates(places[i]));
  }
  amounts.gpu.resident_params = slots.resident_bytes() + slots.shard_bytes();
  const bool copies_on_gpu = gathering_.copies == config::HostCopy::kGpu;
  (copies_on_gpu ? amounts.gpu.param_copies : amounts.host.param_copies) = slots.copy_bytes();
  amounts.gpu.slots = slots.all_slot_bytes(block_slots_);
  amounts.gpu.gradients = gradients.gpu_bytes();
  amounts.host.gradients = gradients.host_bytes();
}

void MemoryLedger::add_gradients_on_nvme(Places places, MemoryAmounts& amounts) const {
  offload::ParamBuffers buffers(gradient_buffers_);
  for (const std::size_t index : by_gradient_size_) {
    const std::uint64_t bytes = units_[index].gradient_image_bytes;
    if (bytes == 0 || (on_gpu_ && !host_updates(places[index]))) continue;
    amounts.nvme.gradients += bytes;
    buffers.add(bytes);
  }
  amounts.host.gradient_buffers = buffers.bytes();
}

SlotFootprint MemoryLedger::slots(Places places) const {
  SlotFootprint slots;
  for (std::size_t i = 0; i < units_.size(); ++i) slots.add(units_[i].slot, stays(places[i]));
  return slots;
}

std::uint64_t MemoryLedger::slot_bytes(Places places, int block_slots) const {
  return slots(places).all_slot_bytes(block_slots);
}

int MemoryLedger::streamed_blocks(Places places) const {
  return slots(places).slots(UnitRole::kBlock, static_cast<int>(units_.size()));
}

}  // namespace sluice::engine
