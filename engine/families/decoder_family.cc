#include "engine/families/decoder_family.h"

#include "engine/families/config_rows.h"
#include "engine/model/decoder/decoder_layout.h"

namespace sluice::engine {
namespace {

constexpr double kLeastFactor = 1e-6;  // of rope_short_factor and rope_long_factor
constexpr double kMostFactor = 1e6;

std::string text(std::int64_t number) { return std::to_string(number); }

// "qwen2, qwen3 or gpt_oss".
std::string classes_with(std::string_view number, const FamilyTable& table) {
  std::string made;
  for (const ConfigRow& row : table.rows)
    if (row.has_number() && row.number.name() == number && made.find(row.classes) == made.npos)
      made += (made.empty() ? "" : "|") + std::string(row.classes);
  const std::size_t last = made.rfind('|');
  if (last != std::string::npos) made.replace(last, 1, " or ");
  for (std::size_t at = made.find('|'); at != std::string::npos; at = made.find('|'))
    made.replace(at, 1, ", ");
  return made;
}

// Numbers that only other classes have.
Status check_numbers(const ShapeReader& of) {
  for (const ConfigRow& row : of.table().rows) {
    if (!row.has_number() || of.table().has(row.number.name(), of.type())) continue;
    if (of.number(row.number.name()) != row.number.default_value)
      return cannot_build(std::string(row.number.name()) + " is for the architecture " +
                          classes_with(row.number.name(), of.table()) + "; " +
                          std::string(of.type().model_type) + " does not have it: leave it out");
  }
  return {};
}

// Longrope has both lists, and no other scaling has one.
Status check_factors(const Rope& rope, std::int64_t rotated) {
  const std::pair<std::string_view, const std::vector<double>&> lists[] = {
      {kRopeShortFactor, rope.short_factors}, {kRopeLongFactor, rope.long_factors}};
  const bool is_long = rope.scaling == RopeScaling::kLongRope;
  for (const auto& [name, factors] : lists) {
    const std::string list(name);
    if (!is_long && !factors.empty())
      return cannot_build(list + " is for rope_scaling longrope: leave it out");
    if (is_long && static_cast<std::int64_t>(factors.size()) != rotated / 2)
      return cannot_build(list + " has " + text(static_cast<std::int64_t>(factors.size())) +
                          " numbers; rope_scaling longrope needs " + text(rotated / 2) +
                          ", one for each pair of rotated numbers");
    for (const double factor : factors)
      if (!(factor >= kLeastFactor && factor <= kMostFactor))
        return cannot_build(list + " has the number " + ShapeNumber{}.text(factor) +
                            "; its numbers must be from 1e-6 to 1e6");
  }
  if (is_long && !(rope.original_context >= 2 && rope.factor > 0))
    return cannot_build(
        "rope_scaling longrope needs a rope_original_context of at least 2, and a rope_factor "
        "above 0");
  return {};
}

Status check_rope(const Rope& rope, std::string_view name, std::int64_t head_dim) {
  if (!(rope.theta > 1))
    return cannot_build(std::string(name) + " is " + std::to_string(rope.theta) +
                        "; it must be more than 1");
  const std::int64_t rotated = rope.rotated(head_dim);
  if (rotated < 2 || rotated % 2 != 0)
    return cannot_build((rope.share == 1 ? "head_dim is " + text(head_dim) + "; its numbers"
                                         : "rope_share rotates " + text(rotated) + " of " +
                                               text(head_dim) + " numbers of a head; these") +
                        " are rotated in pairs, so it must be at least 2 and even");
  SLUICE_RETURN_IF_ERROR(check_factors(rope, rotated));
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kLongRope) return {};
  if (!(rope.factor >= 1))
    return cannot_build("rope_factor is " + std::to_string(rope.factor) +
                        "; it must be at least 1");
  if (rope.scaling == RopeScaling::kDynamic && head_dim == 2)
    return cannot_build("rope_scaling dynamic needs a head width above 2");
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(rope.low_frequency_factor > 0 && rope.high_frequency_factor > rope.low_frequency_factor))
    return cannot_build(
        "rope_high_freq_factor must be more than rope_low_freq_factor, which must be more than 0");
  if (rope.scaling == RopeScaling::kYarn && !(rope.beta_fast > 0 && rope.beta_slow > 0))
    return cannot_build("rope_beta_fast and rope_beta_slow must be more than 0");
  return {};
}

Status check_attention(const ShapeReader& of, const DecoderSpec& spec) {
  const AttentionSpec& attention = spec.block.attention;
  if (of.table().row_of("head_dim") == nullptr) {
    if (attention.heads * attention.head_dim == spec.block.hidden) return {};
    return cannot_build("hidden " + text(spec.block.hidden) + " cannot be divided among " +
                        text(attention.heads) + " heads: make it a multiple of that");
  }
  constexpr std::int64_t kMostHeadDim = 256;
  if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0)
    return cannot_build(text(attention.heads) + " heads cannot be divided among " +
                        text(attention.kv_heads) +
                        " key and value heads (kv_heads): make heads a multiple of kv_heads");
  if (attention.head_dim < 1 || attention.head_dim > kMostHeadDim)
    return cannot_build("head_dim is " + text(attention.head_dim) + "; it must be from 1 to " +
                        text(kMostHeadDim));
  SLUICE_RETURN_IF_ERROR(check_rope(attention.rope, "rope_theta", attention.head_dim));
  if (!spec.window_rope.exists() && of.table().row_of("window_rope_theta") == nullptr) return {};
  return check_rope(spec.window_rope, "window_rope_theta", attention.head_dim);
}

}  // namespace

DecoderFamily::DecoderFamily(FamilyTable table) : table_(std::move(table)) {
  const std::pair<const char*, std::int64_t ModelShape::*> sizes[] = {
      {"layers", &ModelShape::layers}, {"hidden", &ModelShape::hidden},
      {"heads", &ModelShape::heads},   {"context", &ModelShape::context_tokens},
      {"vocab", &ModelShape::vocab},   {"ffn_hidden", &ModelShape::ffn_hidden}};
  for (const ConfigRow& row : table_.rows) {
    const std::string key(row.key);
    for (const auto& [name, size] : sizes)
      if (row.size == size) keys_.try_emplace(name, key);
    if (!row.has_number()) continue;
    if (!key.empty()) keys_.try_emplace(std::string(row.number.name()), key);
    if (table_.row_of(row.number.name()) == &row) numbers_.push_back(row.number);
  }
  for (const FamilyClass& type : table_.classes) {
    types_.push_back(type.model_type);
    if (table_.has_adapters) targets_[type.model_type] = engine::adapter_targets(*type.names);
    for (const bool is_tied : {false, true})
      names_[{type.model_type, is_tied}] = {
          .prefix = table_.prefix,
          .part = table_.part,
          .prefixes_exports = !is_tied || table_.prefixes_tied_exports,
          .is_buffer = table_.is_buffer,
          .head = "lm_head.weight",
          .is_tied = is_tied,
          .token_embedding = table_.token_embedding,
          .stacks = type.stacks,
          .exports_stacks = type.exports_stacks};
  }
}

DecoderSpec DecoderFamily::spec(const ModelShape& shape) const {
  return table_.spec(ShapeReader(table_, shape));
}

void DecoderFamily::resolve_derived(ModelShape& shape) const {
  for (const ConfigRow& row : table_.rows) {
    if (row.resolve == nullptr) continue;
    double& number = shape.numbers[std::string(row.number.name())];
    if (row.is_of(ShapeReader(table_, shape).type().model_type))
      number = row.resolve(shape, number);
  }
}

Status DecoderFamily::check(const ModelShape& shape) const {
  const ShapeReader of(table_, shape);
  const DecoderSpec made = spec(shape);
  SLUICE_RETURN_IF_ERROR(check_numbers(of));
  SLUICE_RETURN_IF_ERROR(check_attention(of, made));
  return table_.check == nullptr ? Status() : table_.check(of, made);
}

std::span<const std::string_view> DecoderFamily::adapter_targets(const ModelShape& shape) const {
  const auto found = targets_.find(ShapeReader(table_, shape).type().model_type);
  if (found == targets_.end()) return {};
  return found->second;
}

ModelLayout DecoderFamily::layout(const ModelOptions& options) const {
  return decoder_layout(spec(options.shape), options);
}

const ParameterNames& DecoderFamily::parameter_names(const ModelShape& shape) const {
  const ShapeReader of(table_, shape);
  return names_.at({of.type().model_type, of.on("tied_head")});
}

Result<HuggingFaceModel> DecoderFamily::read_config(std::string_view text) const {
  return read_by_rows(table_, text);
}

std::string DecoderFamily::write_config(const HuggingFaceModel& model) const {
  return write_by_rows(table_, model);
}

}  // namespace sluice::engine
