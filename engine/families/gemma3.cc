// Gemma 3 text models. Most blocks have a window; every full_interval-th sees the whole text, with
// other rotary frequencies. A model that also sees images is read as its text model.
#include <string>

#include "engine/families/family_table.h"
#include "engine/families/layer_keys.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr std::string_view kFamily = "gemma3";
constexpr const char* kRope = "rope_parameters";
constexpr const char* kInterval = "sliding_window_pattern";
constexpr const char* kLocalTheta = "rope_local_base_freq";

// Tensors of a folder that are no part of the text model.
bool is_left_out(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

DecoderSpec spec(const ShapeReader& of) {
  DecoderSpec spec = gemma_spec(of);
  AttentionSpec& attention = spec.block.attention;
  attention.head_norms = true;
  if (attention.rope.factor != 1) attention.rope.scaling = RopeScaling::kLinear;
  spec.window_rope = {.theta = of.number("window_rope_theta"),
                      .original_context = of.shape().context_tokens};
  return spec;
}

Status check(const ShapeReader& of, const DecoderSpec& spec) {
  if (of.count("full_interval") < 1)
    return cannot_build("full_interval is 0; it must be at least 1 (every block sees all)");
  if (of.count("window") < 1)
    return cannot_build(
        "window is 0; it must be at least 1, or full_interval 1 for models without windows");
  if (!(spec.block.attention.rope.factor >= 1))
    return cannot_build("rope_factor is " + std::to_string(spec.block.attention.rope.factor) +
                        "; it must be at least 1");
  if (!(spec.block.attention.query_scalar > 0))
    return cannot_build("query_scalar is " + std::to_string(spec.block.attention.query_scalar) +
                        "; it must be more than 0");
  return {};
}

// ---- keys --------------------------------------------------------------------------------------

// The frequencies of one kind of layers. Returns the factor of a linear scaling.
double read_rope(ConfigReading& reading, const Json& rope, bool may_scale, double& theta) {
  constexpr double kMost = 1e18;
  constexpr double kMostFactor = 1e9;
  HuggingFaceConfig& config = reading.config;
  // transformers 5 leaves an earlier "type" unread.
  const Json type = rope.value("rope_type", Json("default"));
  const Json earlier = rope.value("type", type);
  if (earlier != type) config.refuse("type", earlier, "\"rope_type\" alone");
  const bool is_linear = may_scale && type == "linear";
  if (type != "default" && !is_linear)
    config.refuse("rope_type", type, may_scale ? "\"default\" or \"linear\"" : "\"default\"");
  HuggingFaceConfig own(rope, std::string(reading.type.models));
  theta = own.number("rope_theta", theta, 1, kMost);
  if (own.number("partial_rotary_factor", 1, 0, 1) != 1)
    own.refuse("partial_rotary_factor", rope["partial_rotary_factor"], "1");
  if (is_linear && !own.has("factor"))
    own.fail(Error(ErrorCode::kCorrupt, "a linear scaling of positions needs \"factor\""));
  const double factor = is_linear ? own.number("factor", 1, 1, kMostFactor) : 1;
  if (!own.status().ok()) config.fail(own.status().error());
  return factor;
}

// transformers 5 has "rope_parameters" for each kind of layers; earlier ones have three keys.
void read_ropes(ConfigReading& reading) {
  constexpr double kMost = 1e18;
  HuggingFaceConfig& config = reading.config;
  HuggingFaceConfig both(config.object(kRope), std::string(reading.type.models));
  for (const auto& [key, value] : both.json().items())
    if (key != kFullLayers && key != kSlidingLayers)
      config.refuse(kRope, both.json(), "one object by kind of layer");
  Json full = both.object(kFullLayers);
  full.update(config.object("rope_scaling"));
  auto& numbers = reading.numbers();
  double& theta = numbers["rope_theta"] = config.number("rope_theta", 1e6, 1, kMost);
  double& local = numbers["window_rope_theta"] = config.number(kLocalTheta, 10000, 1, kMost);
  numbers["rope_factor"] = read_rope(reading, full, true, theta);
  read_rope(reading, both.object(kSlidingLayers), false, local);
  if (!both.status().ok()) config.fail(both.status().error());
}

void write_ropes(const ShapeReader& of, Json& json) {
  const double factor = of.number("rope_factor");
  Json full = {{"rope_type", factor == 1 ? "default" : "linear"},
               {"rope_theta", of.number("rope_theta")}};
  if (factor != 1) full["factor"] = factor;
  json[kRope] = {
      {kFullLayers, std::move(full)},
      {kSlidingLayers, {{"rope_type", "default"}, {"rope_theta", of.number("window_rope_theta")}}}};
}

void read_layers(ConfigReading& reading) {
  constexpr const char* kWindow = "sliding_window";
  HuggingFaceConfig& config = reading.config;
  config.refuse_null(kInterval);
  reading.numbers()["window"] = static_cast<double>(config.count(kWindow, 4096));
  const std::int64_t interval =
      config.full_interval(config.count(kInterval, 6), reading.shape().layers, kSlidingLayers);
  reading.numbers()["full_interval"] = static_cast<double>(interval);
  if (interval > 1) config.refuse_null(kWindow);
}

void write_layers(const ShapeReader& of, Json& json) {
  json["sliding_window"] = of.count("window");
  json[kLayerTypes] = layer_types(of.shape().layers, of.count("full_interval"), kSlidingLayers);
}

std::vector<ConfigRow> rows() {
  const auto of_part = [](std::string_view key, const ShapeNumber& number) {
    return ConfigRow{.key = key, .number = number, .use = ConfigUse::kOfPart};
  };
  return {
      size_row("vocab_size", &ModelShape::vocab, 262208),
      size_row("hidden_size", &ModelShape::hidden, 2304),
      size_row("intermediate_size", &ModelShape::ffn_hidden, 9216),
      size_row("num_hidden_layers", &ModelShape::layers, 26),
      size_row("num_attention_heads", &ModelShape::heads, 8),
      kv_heads_row(4),
      {.key = "head_dim", .number = count_number("model.head_dim", 256, "width of a head")},
      only_row("hidden_activation", {"gelu_pytorch_tanh"}, ConfigUse::kReadAndWritten),
      size_row("max_position_embeddings", &ModelShape::context_tokens, 131072),
      epsilon_row(1e-6),
      tied_row(true),
      attention_bias_row(),
      {.key = "attention_dropout", .dropout = &ModelShape::dropout, .null = ConfigNull::kMissing},
      query_scalar_row(256),
      part_row({.keys = "layer_types|sliding_window|sliding_window_pattern",
                .read = &read_layers,
                .write = &write_layers}),
      part_row({.keys = "rope_theta|rope_scaling|rope_parameters|rope_local_base_freq",
                .read = &read_ropes,
                .write = &write_ropes}),
      of_part("sliding_window",
              count_number("model.window", 1024,
                           "sliding window in tokens: the keys that a query sees, including its "
                           "own (sliding_window)")),
      of_part(kInterval,
              count_number("model.full_interval", 6,
                           "so many consecutive blocks end with one that sees the whole text; the "
                           "others have the window (sliding_window_pattern)")),
      of_part("rope_theta", factor_number("model.rope_theta", 1e6,
                                          "base of the rotary frequencies without the window")),
      of_part("factor",
              factor_number("model.rope_factor", 1,
                            "factor by which positions of these blocks are divided (linear "
                            "scaling)")),
      of_part(kLocalTheta, factor_number("model.window_rope_theta", 10000,
                                         "base of the rotary frequencies with the window "
                                         "(rope_local_base_freq)")),
      only_row("final_logit_softcapping", {Json()}),
      only_row("attn_logit_softcapping", {Json()}),
      only_row("use_bidirectional_attention", {false, Json()}),
      only_row("is_causal", {true}),
      only_row("partial_rotary_factor", {1.0})};
}

// A small model has text alone; the others also see images, and have a longer context.
NamedShape small(std::string_view name, const PresetSizes& sizes) {
  return preset(kFamily, name, sizes, {{"query_scalar", 256}, {"window", 512}});
}

NamedShape large(std::string_view name, const PresetSizes& sizes, double query_scalar = 256) {
  return preset(kFamily, name, sizes,
                {{"query_scalar", query_scalar}, {"window", 1024}, {"rope_factor", 8}});
}

FamilyClass type(std::string_view model_type, std::string_view text_type) {
  return {.model_type = model_type,
          .architecture = "Gemma3ForCausalLM",
          .models = "Gemma 3s",
          .names = &kGemmaNames,
          .text_type = text_type};
}

}  // namespace

FamilyTable gemma3_table() {
  return {.name = kFamily,
          .classes = {type("gemma3", "gemma3_text"), type("gemma3_text", "")},
          .rows = rows(),
          // The text parts of the config.json files on the Hugging Face Hub.
          .presets = {small("gemma3-270m", {18, 640, 4, 1, 256, 2048, 262144, 32768}),
                      small("gemma3-1b", {26, 1152, 4, 1, 256, 6912, 262144, 32768}),
                      large("gemma3-4b", {34, 2560, 8, 4, 256, 10240, 262208, 131072}),
                      large("gemma3-12b", {48, 3840, 16, 8, 256, 15360, 262208, 131072}),
                      large("gemma3-27b", {62, 5376, 32, 16, 128, 21504, 262208, 131072}, 168)},
          .defaults = {.dropout = 0, .ffn_multiplier = 4},
          .spec = &spec,
          .check = &check,
          .part = "language_model.",
          .is_buffer = &is_left_out,
          .left_out = "Sluice trains the model's text part: its vision encoder is left out"};
}

}  // namespace sluice::engine
