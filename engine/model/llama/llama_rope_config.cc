#include "engine/model/llama/llama_rope_config.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr double kMost = 1e9;

constexpr const char* kRopeParameters = "rope_parameters";
constexpr const char* kRopeScaling = "rope_scaling";

// The object with the rotary positions, for all layers: transformers 5's, or the one of earlier
// versions, which transformers prefers if both exist.
Json rope_object(HuggingFaceConfig& config) {
  // An empty object counts as missing, as in Python.
  const bool has_older = config.has(kRopeScaling) && config.json()[kRopeScaling] != Json::object();
  const char* const key = has_older ? kRopeScaling : kRopeParameters;
  if (!config.has(key)) return Json::object();
  const Json& value = config.json()[key];
  if (!value.is_object()) {
    config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " + value.dump() +
                                               ", which is not an object"));
    return Json::object();
  }
  const bool has_layers = config.json().contains("layer_types");
  Json one;
  for (const char* const layers : {kFullLayers, kSlidingLayers}) {
    const auto of_layers = value.find(layers);
    if (of_layers == value.end() || of_layers->is_null()) continue;
    if (!has_layers) config.refuse(key, value, "one object for all layers, or layer_types");
    if (!one.is_null() && one != *of_layers)
      config.refuse(std::string(key), value, "the same rotary positions in all layers");
    one = *of_layers;
  }
  if (one.is_null()) return value;
  return one.is_object() ? one : Json::object();
}

struct RopeKey {
  const char* in_file;
  const char* number;
};
// The keys that each scaling reads, besides the type and the base.
std::vector<RopeKey> keys_of(RopeScaling scaling) {
  constexpr RopeKey kFactor = {"factor", "rope_factor"};
  constexpr RopeKey kOriginal = {"original_max_position_embeddings", "rope_original_context"};
  switch (scaling) {
    case RopeScaling::kNone:
      return {};
    case RopeScaling::kLinear:
    case RopeScaling::kDynamic:
      return {kFactor};
    case RopeScaling::kYarn:
      return {kFactor,
              kOriginal,
              {"attention_factor", "rope_attention_factor"},
              {"mscale", "rope_mscale"},
              {"mscale_all_dim", "rope_mscale_all_dim"},
              {"beta_fast", "rope_beta_fast"},
              {"beta_slow", "rope_beta_slow"}};
    case RopeScaling::kLlama3:
      return {kFactor,
              kOriginal,
              {"low_freq_factor", "rope_low_freq_factor"},
              {"high_freq_factor", "rope_high_freq_factor"}};
  }
  return {};
}

constexpr std::array<const char*, 5> kScalingNames = {"default", "linear", "dynamic", "yarn",
                                                      "llama3"};

RopeScaling scaling_of(HuggingFaceConfig& config, const Json& rope, const RopeOfClass& of) {
  const Json type = rope.value("rope_type", rope.value("type", Json("default")));
  const std::size_t known = of.may_rotate_parts ? 1 : kScalingNames.size();
  for (std::size_t i = 0; i < known; ++i)
    if (type == kScalingNames.at(i)) return static_cast<RopeScaling>(i);
  config.refuse("rope_type", type,
                of.may_rotate_parts
                    ? "\"default\""
                    : "\"default\", \"linear\", \"dynamic\", \"yarn\" or \"llama3\"");
  return RopeScaling::kNone;
}

// transformers ignores a key that the scaling does not read, unless it belongs to another kind of
// positions.
void refuse_other_positions(HuggingFaceConfig& config, const Json& rope, bool may_rotate_parts) {
  for (const char* const key : {"mrope_section", "long_factor", "short_factor"})
    if (rope.contains(key)) config.refuse(key, rope[key], "one angle per position");
  if (may_rotate_parts) return;
  for (const Json* const place : {&rope, &config.json()}) {
    const Json share = place->value("partial_rotary_factor", Json());
    if (!share.is_null() && share != 1)
      config.refuse("partial_rotary_factor", share, "whole heads rotated (1.0)");
  }
}

double rope_theta(HuggingFaceConfig& config, const Json& rope, double of_class) {
  HuggingFaceConfig own(rope, "");
  const double theta = own.has("rope_theta")
                           ? own.number("rope_theta", of_class, 1, kMost * kMost)
                           : config.number("rope_theta", of_class, 1, kMost * kMost);
  if (!own.status().ok()) config.fail(own.status().error());
  return theta;
}

// Checks the keys that transformers requires.
void check_scaling_keys(HuggingFaceConfig& rope, RopeScaling scaling) {
  std::vector<const char*> needed;
  if (scaling != RopeScaling::kNone) needed.push_back("factor");
  if (scaling == RopeScaling::kLlama3) {
    needed.push_back("low_freq_factor");
    needed.push_back("high_freq_factor");
  }
  for (const char* const key : needed) {
    const bool may_be_null = scaling == RopeScaling::kYarn;
    if (rope.has(key) || (may_be_null && rope.json().contains(key))) continue;
    rope.fail(Error(ErrorCode::kCorrupt,
                    "the scaling of rotary positions has no \"" + std::string(key) + "\""));
  }
}

}  // namespace

void parse_rope(HuggingFaceConfig& config, std::int64_t context, const RopeOfClass& of,
                RopeNumbers& numbers) {
  const Json rope = rope_object(config);
  const RopeScaling scaling = scaling_of(config, rope, of);
  refuse_other_positions(config, rope, of.may_rotate_parts);
  numbers["rope_theta"] = rope_theta(config, rope, of.default_theta);
  numbers["rope_scaling"] = static_cast<double>(scaling);
  numbers["rope_original_context"] = static_cast<double>(context);
  HuggingFaceConfig own(rope, "");
  if (of.may_rotate_parts) {
    constexpr const char* kShare = "partial_rotary_factor";
    numbers["rope_share"] = own.number(kShare, config.number(kShare, 1, 0, 1), 0, 1);
  }
  for (const RopeKey& key : keys_of(scaling))
    if (own.has(key.in_file)) numbers[key.number] = own.number(key.in_file, 0, 0, kMost);
  if (scaling == RopeScaling::kLlama3 || scaling == RopeScaling::kYarn) {
    // A key outside the object takes precedence over the one inside.
    const std::int64_t original = config.count("original_max_position_embeddings", 0);
    if (original != 0) numbers["rope_original_context"] = static_cast<double>(original);
  }
  if (scaling == RopeScaling::kYarn) {
    // null means false there, not missing.
    const bool is_null = rope.contains("truncate") && rope["truncate"].is_null();
    numbers["rope_truncate"] = !is_null && own.flag("truncate", true) ? 1 : 0;
    if (own.has("attention_factor") && rope["attention_factor"] == 0)
      config.refuse("attention_factor", rope["attention_factor"], "a factor above 0");
    for (const auto& [number, default_value] :
         {std::pair{"rope_beta_fast", 32.0}, std::pair{"rope_beta_slow", 1.0}})
      if (numbers.contains(number) && numbers[number] == 0) numbers[number] = default_value;
  }
  check_scaling_keys(own, scaling);
  // null stands for the ratio of the contexts.
  if (scaling == RopeScaling::kYarn && !own.has("factor"))
    numbers["rope_factor"] = static_cast<double>(context) / numbers["rope_original_context"];
  if (!own.status().ok()) config.fail(own.status().error());
}

Json rope_text(const LlamaShape& shape, const RopeNumbers& numbers) {
  const Rope& rope = shape.rope;
  Json json = {{"rope_type", kScalingNames.at(static_cast<std::size_t>(rope.scaling))},
               {"rope_theta", rope.theta}};
  for (const RopeKey& key : keys_of(rope.scaling)) {
    const double value = numbers.at(key.number);
    const bool is_unset = value == 0;  // yarn's factors: derived from the others
    if (is_unset) continue;
    if (std::string_view(key.number) == "rope_original_context")
      json[key.in_file] = static_cast<std::int64_t>(value);
    else
      json[key.in_file] = value;
  }
  if (rope.scaling == RopeScaling::kYarn) json["truncate"] = rope.truncate;
  if (may_rotate_parts(shape.architecture)) json["partial_rotary_factor"] = rope.share;
  return json;
}

}  // namespace sluice::engine
