#include "engine/families/family_table.h"

#include <algorithm>
#include <cmath>

#include "aio/check.h"

namespace sluice::engine {
namespace {

constexpr double kMostCount = 1 << 24;
constexpr double kMostFactor = 1e9;
constexpr double kMostEpsilon = 1000;

double as_many_as_heads(const ModelShape& shape, double value) {
  return value == 0 ? static_cast<double>(shape.heads) : value;
}

Rope rope_of(const ShapeReader& of) {
  const std::int64_t original = of.count("rope_original_context");
  return {.theta = of.number("rope_theta"),
          .scaling = static_cast<RopeScaling>(of.count("rope_scaling")),
          .factor = of.number("rope_factor", 1),
          .original_context = original == 0 ? of.shape().context_tokens : original,
          .low_frequency_factor = of.number("rope_low_freq_factor", 1),
          .high_frequency_factor = of.number("rope_high_freq_factor", 4),
          .attention_factor = of.number("rope_attention_factor"),
          .mscale = of.number("rope_mscale"),
          .mscale_all_dim = of.number("rope_mscale_all_dim"),
          .beta_fast = of.number("rope_beta_fast", 32),
          .beta_slow = of.number("rope_beta_slow", 1),
          .truncate = of.number("rope_truncate", 1) != 0,
          .share = of.number("rope_share", 1),
          .short_factors = of.list(kRopeShortFactor),
          .long_factors = of.list(kRopeLongFactor)};
}

}  // namespace

// ---- tables and their shapes -------------------------------------------------------------------

bool is_among(std::string_view word, std::string_view words) {
  for (std::size_t first = 0; first <= words.size();) {
    const std::size_t end = std::min(words.find('|', first), words.size());
    if (words.substr(first, end - first) == word) return true;
    first = end + 1;
  }
  return false;
}

bool ConfigRow::is_of(std::string_view model_type) const {
  return classes.empty() || is_among(model_type, classes);
}

const ConfigRow* FamilyTable::row_of(std::string_view number) const {
  for (const ConfigRow& row : rows)
    if (row.has_number() && row.number.name() == number) return &row;
  return nullptr;
}

HuggingFaceConfig::Json FamilyClass::default_of(std::string_view key,
                                                HuggingFaceConfig::Json other) const {
  for (const auto& [name, value] : defaults)
    if (name == key) return value;
  return other;
}

bool FamilyTable::has(std::string_view number, const FamilyClass& type) const {
  return std::any_of(rows.begin(), rows.end(), [&](const ConfigRow& row) {
    return row.has_number() && row.number.name() == number && row.is_of(type.model_type);
  });
}

const ConfigRow* ConfigReading::row_of(std::string_view number) const {
  return table.row_of(number);
}

double ShapeReader::number(std::string_view name, double other) const {
  const auto found = shape_.numbers.find(std::string(name));
  if (found != shape_.numbers.end()) return found->second;
  const ConfigRow* row = table_.row_of(name);
  return row == nullptr ? other : row->number.default_value;
}

std::int64_t ShapeReader::count(std::string_view name, std::int64_t other) const {
  return static_cast<std::int64_t>(number(name, static_cast<double>(other)));
}

const std::vector<double>& ShapeReader::list(std::string_view name) const {
  static const std::vector<double> none;
  const auto found = shape_.lists.find(std::string(name));
  return found == shape_.lists.end() ? none : found->second;
}

const FamilyClass& ShapeReader::type() const {
  if (table_.class_of != nullptr) return table_.classes.at(table_.class_of(shape_));
  if (table_.row_of("architecture") == nullptr) return table_.classes.back();
  const double place = number("architecture");
  const bool known = place >= 0 && place < static_cast<double>(table_.classes.size());
  return table_.classes[known ? static_cast<std::size_t>(place) : 0];
}

bool ShapeReader::is(std::string_view model_types) const {
  return is_among(type().model_type, model_types);
}

// ---- rows --------------------------------------------------------------------------------------

ConfigRow size_row(std::string_view key, std::int64_t ModelShape::*size,
                   HuggingFaceConfig::Json of_class) {
  return {.key = key, .size = size, .of_class = std::move(of_class)};
}

ConfigRow only_row(std::string_view key, std::vector<HuggingFaceConfig::Json> only, ConfigUse use) {
  return {.key = key, .only = std::move(only), .use = use};
}

ConfigRow part_row(const ConfigPart& part, std::string_view classes) {
  return {.part = part, .classes = classes};
}

ShapeNumber count_number(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostCount,
          .whole = true,
          .meaning = meaning};
}

ShapeNumber factor_number(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostFactor,
          .meaning = meaning};
}

ShapeNumber switch_number(std::string_view key, bool default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value ? 1.0 : 0.0,
          .choices = kSwitchChoices,
          .meaning = meaning};
}

ShapeNumber later(ShapeNumber number) {
  number.omit_if_default = true;
  return number;
}

ConfigRow kv_heads_row(HuggingFaceConfig::Json of_class) {
  return {
      .key = "num_key_value_heads",
      .number = count_number("model.kv_heads", 0, "key and value heads; 0: as many as model.heads"),
      .of_class = std::move(of_class),
      .resolve = &as_many_as_heads};
}

ConfigRow epsilon_row(double of_class) {
  return {.key = "rms_norm_eps",
          .number = {.key = "model.norm_epsilon",
                     .default_value = 1e-6,
                     .minimum = 0,
                     .maximum = kMostEpsilon,
                     .meaning = "rms_norm_eps"},
          .of_class = of_class};
}

ConfigRow tied_row(bool default_value) {
  return {.key = "tie_word_embeddings",
          .number = switch_number(
              "model.tied_head", default_value,
              "use the token embedding as the output projection (tie_word_embeddings)")};
}

ConfigRow query_scalar_row(double of_class) {
  return {.key = "query_pre_attn_scalar",
          .number = count_number("model.query_scalar", 0,
                                 "scores are divided by its square root (query_pre_attn_scalar); "
                                 "0: model.head_dim"),
          .of_class = of_class,
          .resolve = [](const ModelShape& shape, double value) {
            return value == 0 ? shape.numbers.at("head_dim") : value;
          }};
}

ConfigRow attention_bias_row(std::string_view classes, std::string_view meaning) {
  return {
      .key = "attention_bias",
      .number = switch_number("model.attention_bias", false,
                              meaning.empty() ? "biases in attention's linear layers" : meaning),
      .classes = classes};
}

// ---- specs -------------------------------------------------------------------------------------

DecoderSpec usual_spec(const ShapeReader& of) {
  const ModelShape& shape = of.shape();
  const std::int64_t kv_heads = of.count("kv_heads");
  const std::int64_t head_dim = of.count("head_dim");
  const bool bias = of.on("attention_bias");
  return {.block = {.hidden = shape.hidden,
                    .norm = NormKind::kRms,
                    .attention = {.heads = shape.heads,
                                  .kv_heads = kv_heads == 0 ? shape.heads : kv_heads,
                                  .head_dim = head_dim == 0 ? shape.hidden / shape.heads : head_dim,
                                  .qkv_bias = bias,
                                  .output_bias = bias,
                                  .rope = rope_of(of),
                                  .dropout = shape.dropout,
                                  .in_parts = true},
                    .mlp = {.width = shape.ffn(), .gated = true},
                    .names = *of.type().names,
                    .branch_std = kInitialStd,
                    .epsilon = of.number("norm_epsilon")},
          .layers = shape.layers,
          .vocab = shape.vocab,
          .tied = of.on("tied_head"),
          .token_embedding = "embed_tokens",
          .final_norm = "norm"};
}

DecoderSpec gemma_spec(const ShapeReader& of) {
  DecoderSpec spec = usual_spec(of);
  spec.block.norm = NormKind::kRmsFromOne;
  spec.block.mlp.activation = Activation::kGeluTanh;
  spec.block.attention.query_scalar = of.number("query_scalar");
  spec.embedding_scale = std::sqrt(static_cast<double>(of.shape().hidden));
  // An interval of 1: no block has the window.
  if (const std::int64_t interval = of.count("full_interval"); interval > 1)
    spec.window = {.tokens = of.count("window"), .windowed = interval - 1, .full = 1};
  return spec;
}

NamedShape preset(std::string_view family, std::string_view name, const PresetSizes& sizes,
                  std::map<std::string, double> numbers) {
  numbers["kv_heads"] = static_cast<double>(sizes.kv_heads);
  numbers["head_dim"] = static_cast<double>(sizes.head_dim);
  return {.name = name,
          .shape = {.layers = sizes.layers,
                    .hidden = sizes.hidden,
                    .heads = sizes.heads,
                    .context_tokens = sizes.context,
                    .vocab = sizes.vocab,
                    .dropout = 0,
                    .ffn_hidden = sizes.ffn,
                    .family = std::string(family),
                    .numbers = std::move(numbers)}};
}

}  // namespace sluice::engine
