// Loads weights into the parameter offloader, for runs that do not train, and reads them unit by
// unit for other runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "offload/params/param_offloader.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {

// Elements [first, first + values.size()) of a parameter.
using ReadParameter =
    std::function<Status(const ParameterSpec&, std::uint64_t first, std::span<float> values)>;

// Visits a unit's values in its flat order, a tile at a time, with zeros in the gaps between
// parameters. `scratch` is the buffer for a tile.
using VisitTile = std::function<Status(std::uint64_t first, std::span<const float> values)>;
Status read_unit(const UnitLayout& unit, const ReadParameter& read, std::vector<float>& scratch,
                 const VisitTile& visit, std::uint64_t tile_elements = offload::kTileElements);

struct LoadParameters {
  const ModelLayout* model = nullptr;
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::ParamOffloader* params = nullptr;
  ReadParameter read;
  std::function<Status(std::uint64_t done)> progress;  // elements
};

// Adapts a progress callback that gets the total and cannot stop the call.
std::function<Status(std::uint64_t done)> shown(
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress,
    const ModelLayout& model);

// Loads all units in the form used for computing.
Status load_parameters(const LoadParameters& load);

}  // namespace sluice::engine
