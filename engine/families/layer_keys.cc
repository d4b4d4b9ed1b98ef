#include "engine/families/layer_keys.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr const char* kWindow = "sliding_window";
constexpr const char* kSwitch = "use_sliding_window";
constexpr const char* kMaxLayers = "max_window_layers";
constexpr const char* kRotatedLayers = "no_rope_layers";  // 1: the layer has rotary positions
constexpr const char* kUnrotatedInterval = "no_rope_layer_interval";
constexpr const char* kUnrotatedNumber = "unrotated_interval";
constexpr std::string_view kWithSwitch = "qwen2|qwen3|qwen3_moe|smollm3";
constexpr std::string_view kWithMaxLayers = "qwen2|qwen3";

bool has_switch(const FamilyClass& type) {
  return ConfigRow{.classes = kWithSwitch}.is_of(type.model_type);
}

bool has_max_layers(const FamilyClass& type) {
  return ConfigRow{.classes = kWithMaxLayers}.is_of(type.model_type);
}

bool is_unrotated(std::int64_t layer, std::int64_t interval) {
  return interval != 0 && (layer + 1) % interval == 0;
}

// Whether each layer has a window; nothing if the file does not say, or says what no layer can be.
std::optional<std::vector<bool>> sliding_layers(ConfigReading& reading) {
  HuggingFaceConfig& config = reading.config;
  if (!config.has(kLayerTypes)) return std::nullopt;
  const Json& types = config.json()[kLayerTypes];
  const std::int64_t layers = reading.shape().layers;
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers) {
    config.fail(Error(ErrorCode::kCorrupt, "\"layer_types\" is " + types.dump() +
                                               ", which is not one of each of " +
                                               std::to_string(layers) + " layers"));
    return std::nullopt;
  }
  std::vector<bool> sliding;
  for (const Json& type : types) {
    if (type != kFullLayers && type != kSlidingLayers) {
      config.refuse(kLayerTypes, type, "\"full_attention\" and \"sliding_attention\"");
      return std::nullopt;
    }
    sliding.push_back(type == kSlidingLayers);
  }
  return sliding;
}

// Refuses layer_types that says something else than the keys of the window.
void expect_layers(ConfigReading& reading, bool has_window) {
  const auto sliding = sliding_layers(reading);
  if (!sliding || std::find(sliding->begin(), sliding->end(), !has_window) == sliding->end())
    return;
  reading.config.refuse(
      kLayerTypes, reading.config.json()[kLayerTypes],
      has_window ? "\"sliding_attention\" in all layers" : "\"full_attention\" in all layers");
}

// Some layers without a window first, then a fixed number with and a fixed number without in turn.
LayerWindow in_turn(ConfigReading& reading, const std::vector<bool>& sliding) {
  LayerWindow window = {.tokens = 1};
  const auto first = std::find(sliding.begin(), sliding.end(), true);
  if (first == sliding.end()) return {};
  const auto full = std::find(first, sliding.end(), false);
  const auto again = std::find(full, sliding.end(), true);
  window.first = first - sliding.begin();
  window.windowed = full == sliding.end() ? 0 : full - first;
  window.full = again - full;
  for (std::size_t layer = 0; layer < sliding.size(); ++layer) {
    if (window.has(static_cast<std::int64_t>(layer)) == sliding[layer]) continue;
    reading.config.refuse(kLayerTypes, reading.config.json()[kLayerTypes],
                          "one repeating order of layers after the first ones");
    break;
  }
  return window;
}

std::int64_t unrotated_interval(ConfigReading& reading) {
  return static_cast<std::int64_t>(reading.numbers()[kUnrotatedNumber]);
}

// A window in the layers without rotary positions, in the form of in_turn().
LayerWindow in_unrotated(std::int64_t tokens, std::int64_t interval, std::int64_t layers) {
  if (interval == 0) return {};
  LayerWindow window = {.tokens = tokens, .first = interval - 1};
  if (interval == 1 || interval == layers) return window;
  window.windowed = 1;
  window.full = std::min(interval - 1, layers - interval);
  return window;
}

// The window in tokens; 0: none.
std::int64_t window_tokens(ConfigReading& reading) {
  HuggingFaceConfig& config = reading.config;
  const bool said = config.json().contains(kWindow);
  const std::int64_t of_class = reading.type.default_of(kWindow, 0).get<std::int64_t>();
  const std::int64_t tokens = config.count(kWindow, said ? 0 : of_class);
  if (!has_switch(reading.type)) return tokens;
  config.refuse_null(kSwitch);
  return config.flag(kSwitch, false) ? tokens : 0;
}

void store(ConfigReading& reading, const LayerWindow& window) {
  const auto set = [&](const char* name, std::int64_t value) {
    reading.numbers()[name] = window.tokens == 0 ? 0 : static_cast<double>(value);
  };
  set("window", window.tokens);
  set("window_first_layer", window.first);
  set("window_layers", window.windowed);
  set("window_full_layers", window.full);
}

void read_window(ConfigReading& reading) {
  const std::int64_t tokens = window_tokens(reading);
  expect_layers(reading, tokens != 0);
  store(reading, {.tokens = tokens});
}

void read_windows(ConfigReading& reading) {
  constexpr std::int64_t kUsualMaxLayers = 28;
  HuggingFaceConfig& config = reading.config;
  LayerWindow window = {.tokens = window_tokens(reading)};
  const std::int64_t layers = reading.shape().layers;
  if (has_max_layers(reading.type)) {
    config.refuse_null(kMaxLayers);
    window.first = std::min(config.count(kMaxLayers, kUsualMaxLayers, 0), layers);
  }
  if (const auto sliding = sliding_layers(reading)) {
    const LayerWindow order = in_turn(reading, *sliding);
    if (order.tokens != 0 && window.tokens == 0)
      config.fail(Error(ErrorCode::kInvalidArgument,
                        "\"layer_types\" names \"sliding_attention\", but the file sets no window "
                        "(\"sliding_window\", and for Qwen \"use_sliding_window\")"));
    window = {.tokens = order.tokens == 0 ? 0 : window.tokens,
              .first = order.first,
              .windowed = order.windowed,
              .full = order.full};
  } else if (reading.table.has(kUnrotatedNumber, reading.type)) {
    window = in_unrotated(window.tokens, unrotated_interval(reading), layers);
  } else {
    if (reading.type.windows_alternate) window.windowed = window.full = 1;
    if (window.first >= layers) window.tokens = 0;
  }
  store(reading, window);
}

// no_rope_layers as one number; 0: all layers have rotary positions.
std::int64_t interval_of(HuggingFaceConfig& config, std::int64_t layers) {
  const Json& rotated = config.json()[kRotatedLayers];
  const auto is_flag = [](const Json& one) { return one == 0 || one == 1; };
  if (!rotated.is_array() || static_cast<std::int64_t>(rotated.size()) < layers ||
      !std::all_of(rotated.begin(), rotated.end(), is_flag)) {
    config.fail(Error(ErrorCode::kCorrupt, "\"no_rope_layers\" is " + rotated.dump() +
                                               ", which is not 0 or 1 for each of " +
                                               std::to_string(layers) + " layers"));
    return 0;
  }
  const auto end = rotated.begin() + layers;
  const auto first = std::find(rotated.begin(), end, 0);
  const std::int64_t interval = first == end ? 0 : first - rotated.begin() + 1;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if ((rotated[static_cast<std::size_t>(layer)] == 0) == is_unrotated(layer, interval)) continue;
    config.refuse(kRotatedLayers, rotated, "a 0 for each so-many-th layer, and 1 for the others");
    break;
  }
  return interval;
}

void read_unrotated(ConfigReading& reading) {
  constexpr std::int64_t kUsualInterval = 4;
  HuggingFaceConfig& config = reading.config;
  const std::int64_t layers = reading.shape().layers;
  config.refuse_null(kUnrotatedInterval);
  const std::int64_t interval = config.count(kUnrotatedInterval, kUsualInterval);
  reading.numbers()[kUnrotatedNumber] =
      static_cast<double>(config.has(kRotatedLayers) ? interval_of(config, layers)
                          : interval > layers        ? 0
                                                     : interval);
}

void write_unrotated(const ShapeReader& of, Json& json) {
  const std::int64_t layers = of.shape().layers;
  const std::int64_t interval = of.count(kUnrotatedNumber);
  json[kUnrotatedInterval] = interval == 0 ? layers + 1 : interval;
  Json rotated = Json::array();
  for (std::int64_t layer = 0; layer < layers; ++layer)
    rotated.push_back(is_unrotated(layer, interval) ? 0 : 1);
  json[kRotatedLayers] = std::move(rotated);
}

void write_window(const ShapeReader& of, Json& json) {
  const std::int64_t tokens = of.count("window");
  json[kWindow] = tokens == 0 ? Json() : Json(tokens);
  if (has_switch(of.type())) json[kSwitch] = tokens != 0;
}

void write_windows(const ShapeReader& of, Json& json) {
  const LayerWindow window = window_of(of);
  write_window(of, json);
  // transformers' Ministral builds a window mask even if no layer uses one.
  if (of.is("ministral") && window.tokens == 0) json[kWindow] = of.shape().context_tokens;
  if (has_max_layers(of.type()))
    json[kMaxLayers] = window.tokens == 0 ? of.shape().layers : window.first;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < of.shape().layers; ++layer)
    types.push_back(window.has(layer) ? kSlidingLayers : kFullLayers);
  json[kLayerTypes] = std::move(types);
}

}  // namespace

const ConfigPart kWindowPart = {.keys = "sliding_window|use_sliding_window|layer_types",
                                .read = &read_window,
                                .write = &write_window};
const ConfigPart kWindowsPart = {
    .keys = "sliding_window|use_sliding_window|layer_types|max_window_layers",
    .read = &read_windows,
    .write = &write_windows};
const ConfigPart kFullLayersPart = {
    .keys = "layer_types",
    .read = [](ConfigReading& reading) { expect_layers(reading, false); },
    .write = [](const ShapeReader& /*of*/, Json& /*json*/) {}};

const ConfigPart kUnrotatedPart = {.keys = "no_rope_layers|no_rope_layer_interval",
                                   .read = &read_unrotated,
                                   .write = &write_unrotated};

ConfigRow unrotated_row(std::string_view classes) {
  return {.key = kRotatedLayers,
          .number = later(count_number("model.unrotated_interval", 0,
                                       "so many consecutive blocks end with one without rotary "
                                       "positions (no_rope_layers), for smollm3; 0: all have "
                                       "them")),
          .use = ConfigUse::kOfPart,
          .classes = classes};
}

std::vector<ConfigRow> window_rows(std::string_view with_window, std::string_view by_layer) {
  const auto row = [](std::string_view key, const ShapeNumber& number, std::string_view classes) {
    return ConfigRow{.key = key, .number = number, .use = ConfigUse::kOfPart, .classes = classes};
  };
  return {
      row(kWindow,
          count_number("model.window", 0,
                       "sliding window in tokens: the keys that a query sees, including its own "
                       "(sliding_window); 0: all before it"),
          with_window),
      row("the first sliding_attention of layer_types",
          count_number("model.window_first_layer", 0, "the first block with the window"), by_layer),
      row("",
          count_number("model.window_layers", 0,
                       "consecutive blocks with the window, followed by window_full_layers blocks "
                       "without; 0: all after the first"),
          by_layer),
      row("", count_number("model.window_full_layers", 0, "consecutive blocks without the window"),
          by_layer)};
}

LayerWindow window_of(const ShapeReader& of) {
  return {.tokens = of.count("window"),
          .first = of.count("window_first_layer"),
          .windowed = of.count("window_layers"),
          .full = of.count("window_full_layers")};
}

HuggingFaceConfig::Json layer_types(std::int64_t layers, std::int64_t interval, const char* other) {
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < layers; ++layer)
    types.push_back((layer + 1) % interval == 0 ? kFullLayers : other);
  return types;
}

}  // namespace sluice::engine
