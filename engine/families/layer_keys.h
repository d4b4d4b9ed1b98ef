// Which layers of a config.json have a window, or a gated delta rule: layer_types, and the keys
// that stand for it in earlier files. Which have no rotary positions. Without LibTorch.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/families/family_table.h"

namespace sluice::engine {

inline constexpr const char* kLayerTypes = "layer_types";
inline constexpr const char* kFullLayers = "full_attention";
inline constexpr const char* kSlidingLayers = "sliding_attention";

// One window in all layers: sliding_window, which null or use_sliding_window turns off.
extern const ConfigPart kWindowPart;
// A window in some layers: also layer_types, and max_window_layers of a class with it.
extern const ConfigPart kWindowsPart;
// No window.
extern const ConfigPart kFullLayersPart;
// Their numbers, of classes with a window, and of those that can have it in some layers.
std::vector<ConfigRow> window_rows(std::string_view with_window, std::string_view by_layer);
LayerWindow window_of(const ShapeReader& of);

// Layers without rotary positions: no_rope_layers, or else no_rope_layer_interval. In a class with
// this part, which kWindowsPart follows, these have the window of a file without layer_types.
extern const ConfigPart kUnrotatedPart;
// Its number.
ConfigRow unrotated_row(std::string_view classes);

// layer_types: each interval-th layer is "full_attention", the others are `other`.
HuggingFaceConfig::Json layer_types(std::int64_t layers, std::int64_t interval, const char* other);

}  // namespace sluice::engine
