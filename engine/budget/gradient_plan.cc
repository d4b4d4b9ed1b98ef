#include "engine/budget/gradient_plan.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "engine/budget/stripe_plan.h"
#include "offload/params/param_layout.h"

namespace sluice::engine {
namespace {

// Per size class: one that backward adds to, one that the update reads, and one that is read ahead
// or written back.
constexpr int kBuffers = 3;

}  // namespace

Status check_gradients_on_nvme(const RunSpec& spec) {
  if (!spec.gradients_on_nvme()) return {};
  const auto refused = [](const std::string& why) {
    return Error(ErrorCode::kUnsupported,
                 "placement.gradients_to_nvme is on, " + why + ": set it to \"auto\" or \"off\"");
  };
  if (spec.on_gpu) return refused("but gradients computed on a GPU are kept in RAM");
  if (spec.names == nullptr)
    return refused(
        "which works only for modules of the Python package: sluice train keeps gradients in RAM");
  if (spec.ranks.world > 1) return refused("but runs with several ranks keep gradients in RAM");
  if (spec.sums().levels > 1)
    return refused("but run.lanes or run.rounds need several gradient sums at a time");
  return {};
}

offload::ParamOffloader::Options plan_gradients(const RunSpec& spec,
                                                std::vector<int> nvme_weights) {
  offload::ParamOffloader::Options options;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const UnitLayout& layout = spec.model.layout(unit);
    const bool is_empty = layout.elements == 0;
    options.units.push_back({.name = layout.name,
                             .elements = is_empty ? 0 : layout.slot_elements,
                             .tier = is_empty ? offload::Tier::kCpu : offload::Tier::kNvme});
  }
  options.element_bytes = sizeof(float);
  options.cache_buffers = kBuffers;
  options.read_ahead = kBuffers - 1;
  options.store.paths = spec.config.gradient_nvme_paths();
  options.store.weights = std::move(nvme_weights);
  options.store.run = store_name(spec.config, "gradients", spec.ranks);
  options.store.label = "gradients";
  return options;
}

GradientBytes gradient_bytes_on_nvme(const ModelLayout& model) {
  std::vector<std::uint64_t> images;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    if (layout.elements > 0)
      images.push_back(offload::param_image_bytes(layout.slot_elements * sizeof(float)));
  }
  std::sort(images.begin(), images.end(), std::greater<>());
  GradientBytes bytes;
  offload::ParamBuffers buffers(kBuffers);
  for (const std::uint64_t image : images) {
    bytes.nvme += image;
    buffers.add(image);
  }
  bytes.buffers = buffers.bytes();
  return bytes;
}

}  // namespace sluice::engine
