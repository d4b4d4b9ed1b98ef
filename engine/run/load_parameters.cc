#include "engine/run/load_parameters.h"

#include <algorithm>
#include <vector>

#include "engine/run/flat_ranges.h"

namespace sluice::engine {
namespace {

using offload::ParamOffloader;

// `masters` is scratch memory.
Status load_unit(const LoadParameters& load, int unit, std::span<std::byte> parameters,
                 std::vector<float>& masters) {
  const UnitLayout& layout = load.model->layout(unit);
  for (std::uint64_t first = 0; first < layout.elements; first += offload::kTileElements) {
    const std::uint64_t elements = std::min(offload::kTileElements, layout.elements - first);
    masters.assign(elements, 0);
    SLUICE_RETURN_IF_ERROR(for_each_parameter(
        layout, first, elements,
        [&](const ParameterSpec& parameter, std::uint64_t from, std::uint64_t offset,
            std::uint64_t count) -> Status {
          return load.read(parameter, from, std::span(masters).subspan(offset, count));
        }));
    const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(load.form));
    offload::pack_parameters(load.form, masters, parameters.subspan(first * width).data());
  }
  return {};
}

}  // namespace

Status load_parameters(const LoadParameters& load) {
  std::uint64_t total = 0;
  for (int unit = 0; unit < load.model->units(); ++unit) total += load.model->layout(unit).elements;
  std::vector<float> masters;
  std::uint64_t done = 0;
  for (int unit = 0; unit < load.model->units(); ++unit) {
    SLUICE_ASSIGN_OR_RETURN(const auto lease,
                            load.params->acquire(unit, ParamOffloader::Access::kReplace));
    SLUICE_RETURN_IF_ERROR(load_unit(load, unit, lease.bytes(), masters));
    done += load.model->layout(unit).elements;
    if (load.progress) load.progress(done, total);
  }
  return load.params->drain();
}

}  // namespace sluice::engine
