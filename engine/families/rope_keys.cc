#include "engine/families/rope_keys.h"

#include <array>
#include <string>
#include <utility>

#include "engine/families/layer_keys.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr double kMost = 1e9;
constexpr const char* kRopeParameters = "rope_parameters";
constexpr const char* kRopeScaling = "rope_scaling";
constexpr const char* kShare = "partial_rotary_factor";
constexpr const char* kOriginal = "original_max_position_embeddings";

// In the order of kRopeScalings.
constexpr std::array<const char*, 6> kScalingNames = {"default", "linear", "dynamic",
                                                      "yarn",    "llama3", "longrope"};

// The one object in `ropes`, the value of `key`, which may have one for each kind of layers.
Json rope_of_all(ConfigReading& reading, const std::string& key, const Json& ropes) {
  HuggingFaceConfig& config = reading.config;
  const bool has_layers = config.json().contains(kLayerTypes);
  Json one;
  for (const char* const layers : {kFullLayers, kSlidingLayers}) {
    const auto of_layers = ropes.find(layers);
    if (of_layers == ropes.end() || of_layers->is_null()) continue;
    if (!has_layers || !reading.type.takes_kinds)
      config.refuse(key, ropes, "one object for all layers, or layer_types");
    if (!one.is_null() && one != *of_layers)
      config.refuse(key, ropes, "the same rotary positions in all layers");
    one = *of_layers;
  }
  if (one.is_null()) return ropes;
  return one.is_object() ? one : Json::object();
}

// transformers prefers the object of earlier versions if both exist.
Json rope_object(ConfigReading& reading) {
  HuggingFaceConfig& config = reading.config;
  // An empty object counts as missing, as in Python.
  const auto has = [&](const char* key) {
    return config.has(key) && config.json()[key] != Json::object();
  };
  if (!has(kRopeScaling) && !has(kRopeParameters))
    return reading.type.rope.is_null() ? Json::object() : reading.type.rope;
  const char* const key = has(kRopeScaling) ? kRopeScaling : kRopeParameters;
  const Json ropes = config.object(key);
  return rope_of_all(reading, key, ropes);
}

struct RopeKey {
  const char* in_file;
  std::string_view number;
};
constexpr RopeKey kFactor = {"factor", "rope_factor"};
// The keys that each scaling reads, besides the type and the base.
std::vector<RopeKey> keys_of(RopeScaling scaling) {
  constexpr RopeKey kOriginalContext = {kOriginal, "rope_original_context"};
  switch (scaling) {
    case RopeScaling::kNone:
      return {};
    case RopeScaling::kLinear:
    case RopeScaling::kDynamic:
      return {kFactor};
    case RopeScaling::kYarn:
      return {kFactor,
              kOriginalContext,
              {"attention_factor", "rope_attention_factor"},
              {"mscale", "rope_mscale"},
              {"mscale_all_dim", "rope_mscale_all_dim"},
              {"beta_fast", "rope_beta_fast"},
              {"beta_slow", "rope_beta_slow"}};
    case RopeScaling::kLlama3:
      return {kFactor,
              kOriginalContext,
              {"low_freq_factor", "rope_low_freq_factor"},
              {"high_freq_factor", "rope_high_freq_factor"}};
    case RopeScaling::kLongRope:
      return {kFactor, kOriginalContext, {"attention_factor", "rope_attention_factor"}};
  }
  return {};
}

struct RopeList {
  const char* in_file;
  std::string_view list;
};
constexpr std::array<RopeList, 2> kLists = {RopeList{"short_factor", kRopeShortFactor},
                                            RopeList{"long_factor", kRopeLongFactor}};

RopeScaling scaling_of(ConfigReading& reading, const Json& rope) {
  Json type = rope.value("rope_type", rope.value("type", Json("default")));
  // transformers' names of earlier versions.
  if (is_among(kScalingNames.back(), reading.type.scalings) && (type == "su" || type == "yarn"))
    type = kScalingNames.back();
  std::vector<std::string> known;
  for (std::size_t i = 0; i < kScalingNames.size(); ++i) {
    const std::string name = kScalingNames.at(i);
    if (!is_among(i == 0 ? "none" : name, reading.type.scalings)) continue;
    if (type == name) return static_cast<RopeScaling>(i);
    known.push_back("\"" + name + "\"");
  }
  std::string words = known.front();
  for (std::size_t i = 1; i < known.size(); ++i)
    words += (i + 1 == known.size() ? " or " : ", ") + known[i];
  if (!reading.type.takes_sections || type != "mrope")
    reading.config.refuse("rope_type", type, words);
  return RopeScaling::kNone;
}

// transformers ignores a key that the scaling does not read, unless it belongs to another kind of
// positions.
void refuse_other_positions(ConfigReading& reading, const Json& rope, RopeScaling scaling) {
  HuggingFaceConfig& config = reading.config;
  for (const char* const key : {"mrope_section", "long_factor", "short_factor"}) {
    const bool is_read = scaling == RopeScaling::kLongRope && key != std::string("mrope_section");
    if (rope.contains(key) && !reading.type.takes_sections && !is_read)
      config.refuse(key, rope[key], "one angle per position");
  }
  if (reading.type.rotates_parts) return;
  for (const Json* const place : {&rope, &config.json()}) {
    const Json share = place->value(kShare, Json());
    if (!share.is_null() && share != 1) config.refuse(kShare, share, "whole heads rotated (1.0)");
  }
}

// The value in the object, or else next to it.
double number_in(ConfigReading& reading, HuggingFaceConfig& rope, const char* key,
                 const char* number, double least, double most) {
  const ConfigRow* row = reading.row_of(number);
  const double of_family = row == nullptr ? 0 : row->number.default_value;
  const double other = reading.type.default_of(key, of_family).get<double>();
  return rope.has(key) ? rope.number(key, other, least, most)
                       : reading.config.number(key, other, least, most);
}

// Checks the keys that transformers requires.
void check_scaling_keys(HuggingFaceConfig& rope, RopeScaling scaling) {
  std::vector<const char*> needed;
  if (scaling == RopeScaling::kLongRope)
    for (const RopeList& list : kLists) needed.push_back(list.in_file);
  else if (scaling != RopeScaling::kNone)
    needed.push_back("factor");
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

// yarn's and longrope's: null, or of longrope no factor, stands for the ratio of the contexts.
void read_factors(ConfigReading& reading, HuggingFaceConfig& rope) {
  auto& numbers = reading.numbers();
  if (rope.has("attention_factor") && rope.json()["attention_factor"] == 0)
    reading.config.refuse("attention_factor", rope.json()["attention_factor"], "a factor above 0");
  if (!rope.has("factor"))
    numbers["rope_factor"] =
        static_cast<double>(reading.shape().context_tokens) / numbers["rope_original_context"];
}

void read_yarn(ConfigReading& reading, HuggingFaceConfig& rope) {
  auto& numbers = reading.numbers();
  // null means false there, not missing.
  const bool is_null = rope.json().contains("truncate") && !rope.has("truncate");
  numbers["rope_truncate"] = !is_null && rope.flag("truncate", true) ? 1 : 0;
  for (const auto& [number, default_value] :
       {std::pair{"rope_beta_fast", 32.0}, std::pair{"rope_beta_slow", 1.0}})
    if (numbers.contains(number) && numbers[number] == 0) numbers[number] = default_value;
  read_factors(reading, rope);
}

void read_longrope(ConfigReading& reading, HuggingFaceConfig& rope) {
  reading.config.refuse_null(kOriginal);
  read_factors(reading, rope);
  for (const RopeList& list : kLists)
    if (const auto numbers = rope.numbers(list.in_file); !numbers.empty())
      reading.shape().lists[std::string(list.list)] = numbers;
}

void read_scaling(ConfigReading& reading, HuggingFaceConfig& rope, RopeScaling scaling) {
  auto& numbers = reading.numbers();
  numbers["rope_scaling"] = static_cast<double>(scaling);
  numbers["rope_original_context"] = static_cast<double>(reading.shape().context_tokens);
  for (const RopeKey& key : keys_of(scaling))
    if (rope.has(key.in_file))
      numbers[std::string(key.number)] = rope.number(key.in_file, 0, 0, kMost);
  if (scaling == RopeScaling::kLlama3 || scaling == RopeScaling::kYarn ||
      scaling == RopeScaling::kLongRope) {
    // A key outside the object, or the class' default of it, takes precedence over the one inside.
    const std::int64_t original =
        reading.config.count(kOriginal, reading.type.default_of(kOriginal, 0).get<std::int64_t>());
    if (original != 0) numbers["rope_original_context"] = static_cast<double>(original);
  }
  if (scaling == RopeScaling::kYarn) read_yarn(reading, rope);
  if (scaling == RopeScaling::kLongRope) read_longrope(reading, rope);
  check_scaling_keys(rope, scaling);
}

void read_rope(ConfigReading& reading) {
  const Json object = rope_object(reading);
  HuggingFaceConfig rope(object, "");
  const RopeScaling scaling = scaling_of(reading, object);
  refuse_other_positions(reading, object, scaling);
  auto& numbers = reading.numbers();
  numbers["rope_theta"] = number_in(reading, rope, "rope_theta", "rope_theta", 1, kMost * kMost);
  if (reading.type.rotates_parts) {
    reading.config.refuse_null(kShare);
    numbers["rope_share"] = number_in(reading, rope, kShare, "rope_share", 0, 1);
  }
  if (reading.row_of("rope_scaling") != nullptr) read_scaling(reading, rope, scaling);
  if (!rope.status().ok()) reading.config.fail(rope.status().error());
}

// Whether longrope's factor is the one that a file without it has.
bool has_usual_factor(const ShapeReader& of) {
  return of.number("rope_factor") ==
         static_cast<double>(of.shape().context_tokens) / of.number("rope_original_context");
}

Json rope_json(const ShapeReader& of) {
  const auto scaling = static_cast<RopeScaling>(of.count("rope_scaling"));
  Json json = {{"rope_type", kScalingNames.at(static_cast<std::size_t>(scaling))},
               {"rope_theta", of.number("rope_theta")}};
  for (const RopeKey& key : keys_of(scaling)) {
    const double value = of.number(key.number);
    const bool is_derived = value == 0 || (scaling == RopeScaling::kLongRope &&
                                           key.number == kFactor.number && has_usual_factor(of));
    if (is_derived) continue;
    if (key.number == "rope_original_context")
      json[key.in_file] = static_cast<std::int64_t>(value);
    else
      json[key.in_file] = value;
  }
  if (scaling == RopeScaling::kYarn) json["truncate"] = of.on("rope_truncate");
  if (scaling == RopeScaling::kLongRope)
    for (const RopeList& list : kLists) json[list.in_file] = of.list(list.list);
  if (of.type().rotates_parts) json[kShare] = of.number("rope_share");
  return json;
}

// transformers 4 refuses a longrope with more keys than these.
Json older_longrope_json(const ShapeReader& of) {
  Json json = {{"type", kScalingNames.back()}};
  for (const RopeList& list : kLists) json[list.in_file] = of.list(list.list);
  return json;
}

void write_rope(const ShapeReader& of, Json& json) {
  json["rope_theta"] = of.number("rope_theta");
  const bool is_long = of.number("rope_scaling") == static_cast<double>(RopeScaling::kLongRope);
  if (is_long) json[kOriginal] = of.count("rope_original_context");
  const bool is_plain = is_long && has_usual_factor(of) && !of.on("rope_attention_factor");
  json[kRopeScaling] = is_plain                ? older_longrope_json(of)
                       : of.on("rope_scaling") ? rope_json(of)
                                               : Json();
  json[kRopeParameters] = rope_json(of);
}

// Scalings that read the original context have the whole one where none is given.
double original_context(const ModelShape& shape, double value) {
  const auto scaling = static_cast<RopeScaling>(static_cast<int>(shape.numbers.at("rope_scaling")));
  if (scaling == RopeScaling::kNone || scaling == RopeScaling::kLinear) return 0;
  return value == 0 ? static_cast<double>(shape.context_tokens) : value;
}

}  // namespace

constexpr std::string_view kKeys =
    "rope_theta|rope_scaling|rope_parameters|partial_rotary_factor|"
    "original_max_position_embeddings";
const ConfigPart kRopePart = {.keys = kKeys, .read = &read_rope, .write = &write_rope};
const ConfigPart kRopeParametersPart = {
    .keys = kKeys, .read = &read_rope, .write = [](const ShapeReader& of, Json& json) {
      json[kRopeParameters] = rope_json(of);
    }};

std::vector<ConfigRow> rope_rows() {
  const auto of_part = [](std::string_view key, const ShapeNumber& number) {
    return ConfigRow{.key = key, .number = number, .use = ConfigUse::kOfPart};
  };
  std::vector<ConfigRow> rows = {
      of_part("rope_theta",
              factor_number("model.rope_theta", 10000, "base of the rotary frequencies")),
      of_part(
          "rope_type",
          {.key = "model.rope_scaling",
           .choices = kRopeScalings,
           .meaning = "how rotary positions are extended beyond the original context (rope_type)"}),
      of_part("factor", factor_number("model.rope_factor", 1, "factor of the scaling")),
      of_part(kOriginal, count_number("model.rope_original_context", 0,
                                      "sequence length of the original training, in tokens "
                                      "(original_max_position_embeddings); 0: model.context")),
      of_part("low_freq_factor", factor_number("model.rope_low_freq_factor", 1, "for llama3")),
      of_part("high_freq_factor", factor_number("model.rope_high_freq_factor", 4, "for llama3")),
      of_part("attention_factor", factor_number("model.rope_attention_factor", 0,
                                                "for yarn and longrope; 0: computed from the "
                                                "other numbers")),
      of_part("mscale", factor_number("model.rope_mscale", 0, "for yarn; 0: none")),
      of_part("mscale_all_dim", factor_number("model.rope_mscale_all_dim", 0, "for yarn; 0: none")),
      of_part("beta_fast", factor_number("model.rope_beta_fast", 32, "of yarn")),
      of_part("beta_slow", factor_number("model.rope_beta_slow", 1, "of yarn")),
      of_part("truncate", switch_number("model.rope_truncate", true,
                                        "for yarn: round its limits to whole dimensions"))};
  rows[3].resolve = &original_context;
  return rows;
}

std::vector<ShapeList> rope_lists() {
  return {{.key = "model.rope_short_factor",
           .meaning = "for longrope: what divides the frequency of each rotated pair in sequences "
                      "of up to model.rope_original_context tokens (short_factor)"},
          {.key = "model.rope_long_factor",
           .meaning = "for longrope: the same in longer sequences (long_factor)"}};
}

ConfigRow rope_share_row(double default_value, ConfigUse use) {
  return {.key = kShare,
          .number = {.key = "model.rope_share",
                     .default_value = default_value,
                     .minimum = 0,
                     .maximum = 1,
                     .meaning = "part of each head that is rotated, at its beginning "
                                "(partial_rotary_factor)"},
          .use = use};
}

}  // namespace sluice::engine
