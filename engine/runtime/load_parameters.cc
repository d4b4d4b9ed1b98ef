#include "engine/runtime/load_parameters.h"

#include <algorithm>

#include "engine/runtime/flat_ranges.h"

namespace sluice::engine {

using offload::ParamOffloader;

Status read_unit(const UnitLayout& unit, const ReadParameter& read, std::vector<float>& scratch,
                 const VisitTile& visit, std::uint64_t tile_elements) {
  for (std::uint64_t first = 0; first < unit.elements; first += tile_elements) {
    const std::uint64_t elements = std::min(tile_elements, unit.elements - first);
    scratch.assign(elements, 0);
    SLUICE_RETURN_IF_ERROR(for_each_parameter(
        unit, first, elements,
        [&](const ParameterSpec& parameter, std::uint64_t from, std::uint64_t offset,
            std::uint64_t count) -> Status {
          return read(parameter, from, std::span(scratch).subspan(offset, count));
        }));
    SLUICE_RETURN_IF_ERROR(visit(first, scratch));
  }
  return {};
}

std::function<Status(std::uint64_t done)> shown(
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress,
    const ModelLayout& model) {
  if (!progress) return {};
  std::uint64_t total = 0;
  for (int unit = 0; unit < model.units(); ++unit) total += model.layout(unit).elements;
  return [progress, total](std::uint64_t done) -> Status {
    progress(done, total);
    return {};
  };
}

Status load_parameters(const LoadParameters& load) {
  std::vector<float> masters;
  std::uint64_t done = 0;
  const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(load.form));
  for (int unit = 0; unit < load.model->units(); ++unit) {
    const UnitLayout& layout = load.model->layout(unit);
    if (layout.elements == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(const auto lease,
                            load.params->acquire(unit, ParamOffloader::Access::kReplace));
    SLUICE_RETURN_IF_ERROR(read_unit(
        layout, load.read, masters, [&](std::uint64_t first, std::span<const float> values) {
          offload::pack_parameters(load.form, values, lease.bytes().subspan(first * width).data());
          done += values.size();
          return load.progress ? load.progress(done) : Status();
        }));
  }
  return load.params->drain();
}

}  // namespace sluice::engine
