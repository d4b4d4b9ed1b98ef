// FamilyTable: a family of decoders as data: the keys of its config.json and the numbers that they
// are, transformers' classes, the names of its tensors, and its presets. Reading, writing, the
// checks of a model and everything else that ModelFamily asks for derive from it. Without LibTorch.
//
// Memory:  constant data, for the whole program. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/hugging_face_config.h"
#include "engine/model/model_family.h"

namespace sluice::engine {

struct ConfigRow;
struct FamilyTable;

// One of transformers' classes.
struct FamilyClass {
  std::string_view model_type;
  std::string_view architecture;  // "Qwen3ForCausalLM"
  std::string_view models;        // in messages: "Qwen3s"
  const BlockNames* names = nullptr;
  // Its defaults of keys in config.json, where they are not those of the family's rows.
  std::vector<std::pair<std::string_view, HuggingFaceConfig::Json>> defaults = {};

  // ---- tokens that a file without the keys has; negative: none ----
  std::int64_t begin = -1;
  std::int64_t end = -1;
  std::int64_t padding = -1;

  // ---- rotary positions ----
  std::string_view scalings = "none";  // those of kRopeScalings that it supports
  // A part of each head is rotated (partial_rotary_factor).
  bool rotates_parts = false;
  // Positions in images (mrope) may have sections, which are equal in text.
  bool takes_sections = false;
  // There may be an object for each kind of layers, if all are the same.
  bool takes_kinds = true;
  // rope_parameters of a file without any.
  HuggingFaceConfig::Json rope = {};

  bool windows_alternate = false;  // in a file without layer_types: every other layer has one

  // ---- files ----
  std::string_view text_type = {};  // it also sees images, and this is the class of its text part
  std::string_view by_layer = {};   // the class that it is instead, if the file has layer_types
  bool reads_mxfp4 = false;
  std::span<const ExpertStack> stacks = {};
  bool exports_stacks = false;

  // Its default of a key; `other`: where it has none of its own.
  HuggingFaceConfig::Json default_of(std::string_view key, HuggingFaceConfig::Json other) const;
};

// Whether `words`, such as "llama|qwen3", has the word.
bool is_among(std::string_view word, std::string_view words);

// A shape of a family, whose numbers have their defaults where it lacks them. Refers to both.
class ShapeReader {
 public:
  ShapeReader(const FamilyTable& table, const ModelShape& shape) : table_(table), shape_(shape) {}

  const FamilyTable& table() const { return table_; }
  const ModelShape& shape() const { return shape_; }
  // `other`: for a number that the family does not have.
  double number(std::string_view name, double other = 0) const;
  std::int64_t count(std::string_view name, std::int64_t other = 0) const;
  bool on(std::string_view name) const { return number(name) != 0; }
  const std::vector<double>& list(std::string_view name) const;  // empty: it has none
  const FamilyClass& type() const;                               // of an unknown one: the first
  // Whether the class is one of these: "llama|qwen3".
  bool is(std::string_view model_types) const;

 private:
  const FamilyTable& table_;
  const ModelShape& shape_;
};

// A config.json that is being read. Errors are left in `config`.
struct ConfigReading {
  const FamilyTable& table;
  HuggingFaceConfig& config;
  const FamilyClass& type;
  HuggingFaceModel& model;

  ModelShape& shape() const { return model.shape; }
  std::map<std::string, double>& numbers() const { return model.shape.numbers; }
  const ConfigRow* row_of(std::string_view number) const;  // null: the family has no such number
};

// Several keys of config.json that are read and written together.
struct ConfigPart {
  std::string_view keys = {};  // "rope_theta|rope_scaling"
  void (*read)(ConfigReading& reading) = nullptr;
  void (*write)(const ShapeReader& of, HuggingFaceConfig::Json& json) = nullptr;
};

// What null means in place of a value. transformers refuses most.
enum class ConfigNull : std::uint8_t { kRefused, kMissing, kDerived };
enum class ConfigUse : std::uint8_t { kReadAndWritten, kRead, kWritten, kWrittenIfOther, kOfPart };

// A key of config.json and what it is: a size, a number, one known value, or a part of several
// keys. A number may have no key of its own. Files are written in the order of the rows.
struct ConfigRow {
  std::string_view key = {};
  std::int64_t ModelShape::*size = nullptr;
  double ModelShape::*dropout = nullptr;
  ShapeNumber number = {};
  ConfigPart part = {};
  std::vector<HuggingFaceConfig::Json> only = {};  // others are refused; the first is the default

  HuggingFaceConfig::Json of_class = {};  // transformers' default; null: the number's
  ConfigNull null = ConfigNull::kRefused;
  ConfigUse use = ConfigUse::kReadAndWritten;
  std::string_view classes = {};  // "llama|qwen3", which have it; empty: all
  // Other words for the number's, which transformers computes alike.
  std::vector<std::pair<std::string_view, std::string_view>> synonyms = {};
  // The number of a shape that has been completed: 0 can stand for another.
  double (*resolve)(const ModelShape& shape, double value) = nullptr;

  bool is_of(std::string_view model_type) const;
  bool has_number() const { return !number.key.empty(); }
};

struct FamilyTable {
  std::string_view name;
  std::vector<FamilyClass> classes;
  std::vector<ConfigRow> rows;
  std::vector<NamedShape> presets;
  std::vector<ShapeList> lists = {};
  DefaultNumbers defaults = {};
  DecoderSpec (*spec)(const ShapeReader& of) = nullptr;  // usual_spec(), changed
  // The class of a shape, in `classes`; null: by the number "architecture", or else the last.
  std::size_t (*class_of)(const ModelShape& shape) = nullptr;
  // What usual checks leave to the family; null: nothing.
  Status (*check)(const ShapeReader& of, const DecoderSpec& spec) = nullptr;
  // After all rows have been read; null: nothing.
  void (*finish)(ConfigReading& reading) = nullptr;
  bool has_adapters = true;

  // ---- names in files ----
  std::string_view prefix = "model.";
  std::string_view part = {};  // see ParameterNames
  std::string_view token_embedding = "embed_tokens.weight";
  bool prefixes_tied_exports = true;  // those without a head of their own
  bool (*is_buffer)(std::string_view name) = nullptr;
  std::string_view left_out = {};   // the note on a file whose text part alone is read
  bool writes_older_dtype = false;  // torch_dtype, too

  const ConfigRow* row_of(std::string_view number) const;  // the first; or null
  bool has(std::string_view number, const FamilyClass& type) const;
};

// ---- rows that families share ------------------------------------------------------------------

ConfigRow size_row(std::string_view key, std::int64_t ModelShape::*size,
                   HuggingFaceConfig::Json of_class);
ConfigRow only_row(std::string_view key, std::vector<HuggingFaceConfig::Json> only,
                   ConfigUse use = ConfigUse::kRead);
ConfigRow part_row(const ConfigPart& part, std::string_view classes = {});
// Numbers: of layers, heads or tokens; real; and yes or no.
ShapeNumber count_number(std::string_view key, double default_value, std::string_view meaning);
ShapeNumber factor_number(std::string_view key, double default_value, std::string_view meaning);
ShapeNumber switch_number(std::string_view key, bool default_value, std::string_view meaning);
// One that earlier models of the family lack, and then it has its default.
ShapeNumber later(ShapeNumber number);

ConfigRow kv_heads_row(HuggingFaceConfig::Json of_class = {});
ConfigRow epsilon_row(double of_class);
ConfigRow tied_row(bool default_value);
ConfigRow query_scalar_row(double of_class);
ConfigRow attention_bias_row(std::string_view classes = {}, std::string_view meaning = {});

// ---- the rest ----------------------------------------------------------------------------------

// A block with RMSNorms, rotary positions and a gated feed-forward, of the numbers kv_heads,
// head_dim, attention_bias, norm_epsilon, tied_head and rope_*.
DecoderSpec usual_spec(const ShapeReader& of);
// The names of such a block in most families.
inline constexpr BlockNames kUsualNames = {
    .blocks = "layers",
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .projection = "self_attn.o_proj",
    .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
    .mlp_out = "mlp.down_proj",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .head_norms = {"self_attn.q_norm", "self_attn.k_norm"}};

// Gemma 2's and later's: norms before and after each branch, scaled embeddings, and of the numbers
// query_scalar, window and full_interval.
DecoderSpec gemma_spec(const ShapeReader& of);
inline constexpr BlockNames kGemmaNames = [] {
  BlockNames names = kUsualNames;
  names.norm2 = "pre_feedforward_layernorm";
  names.branch_norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
  return names;
}();

struct PresetSizes {
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t ffn;
  std::int64_t vocab;
  std::int64_t context;
};
NamedShape preset(std::string_view family, std::string_view name, const PresetSizes& sizes,
                  std::map<std::string, double> numbers);

}  // namespace sluice::engine
