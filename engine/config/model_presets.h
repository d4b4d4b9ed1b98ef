// The models that have a name: the only list of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/config/config.h"

namespace sluice::config {

struct NamedShape {
  ModelPreset preset;
  std::string_view name;  // in files: a choice of model.preset
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t context_tokens;
  std::int64_t vocab;
};

// All but custom, which has no shape.
std::span<const NamedShape> model_presets();

}  // namespace sluice::config
