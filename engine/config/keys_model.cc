// The keys of section "model", for every family and for some, and of section "recipe", which
// selects what is trained.
#include <algorithm>
#include <list>
#include <string>

#include "engine/config/key_sections.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

constexpr Range kShape = {.minimum = 1, .maximum = 1 << 24};

constexpr Key kRows[] = {
    {.path = "model.layers",
     .field = SLUICE_FIELD(model.layers),
     .default_json = "\"auto\"",
     .range = {.minimum = 1, .maximum = 1 << 16},
     .unit = "blocks",
     .auto_rule = "the preset's",
     .meaning = "transformer blocks"},
    {.path = "model.hidden",
     .field = SLUICE_FIELD(model.hidden),
     .default_json = "\"auto\"",
     .range = {.minimum = 1, .maximum = 1 << 20},
     .auto_rule = "the preset's",
     .meaning = "width of the residual stream; a GPT-2's is a multiple of model.heads"},
    {.path = "model.heads",
     .field = SLUICE_FIELD(model.heads),
     .default_json = "\"auto\"",
     .range = {.minimum = 1, .maximum = 1 << 16},
     .auto_rule = "the preset's",
     .meaning = "attention heads"},
    {.path = "model.context",
     .field = SLUICE_FIELD(model.context_tokens),
     .default_json = "\"auto\"",
     .range = kShape,
     .unit = "tokens",
     .auto_rule = "the preset's",
     .meaning = "longest sequence in tokens (the number of position embeddings)"},
    {.path = "model.vocab",
     .field = SLUICE_FIELD(model.vocab),
     .default_json = "\"auto\"",
     .range = kShape,
     .unit = "tokens",
     .auto_rule = "the preset's",
     .meaning = "size of the vocabulary"},
    {.path = "model.dropout",
     .field = SLUICE_FIELD(model.dropout),
     .default_json = "\"auto\"",
     .range = {.minimum = 0, .maximum = 0.999},
     .auto_rule = "the preset's; for custom the family's, 0.1 for gpt2",
     .meaning = "dropout probability after the embedding, in attention and on residuals"},
    {.path = "model.ffn_multiplier",
     .field = SLUICE_FIELD(model.ffn_multiplier),
     .default_json = "\"auto\"",
     .range = {.minimum = 1e-6, .maximum = 65536},
     .auto_rule = "the preset's; for custom the family's, 4 for gpt2",
     .meaning = "width of the feed-forward layer as a multiple of model.hidden"},
    {.path = "model.init_seed",
     .field = SLUICE_FIELD(model.init_seed),
     .default_json = "\"auto\"",
     .range = kNotNegative,
     .auto_rule = "run.seed",
     .meaning = "seed of the initial weights"},
    {.path = "model.init_from",
     .field = SLUICE_FIELD(model.init_from),
     .default_json = "\"\"",
     .meaning = "initial weights: a safetensors file, the index of a sharded one, or a folder; a "
                "config.json in the same folder must describe this model; empty: random weights"},
};

constexpr Key kLoraRows[] = {
    {.path = "recipe.lora.rank",
     .field = SLUICE_FIELD(lora.rank),
     .default_json = "0",
     .range = {.minimum = 0, .maximum = engine::kMostAdapterRank},
     .meaning = "train LoRA adapters of this rank and leave the model's own weights unchanged; 0 "
                "trains the model itself"},
    {.path = "recipe.lora.r",
     .treatment = Treatment::kAlias,
     .source = KeySource::kHuggingFace,
     .alias_of = "recipe.lora.rank"},
    {.path = "recipe.lora.alpha",
     .field = SLUICE_FIELD(lora.alpha),
     .default_json = "\"auto\"",
     .range = {.minimum = 1e-6, .maximum = 1e6},
     .auto_rule = "twice recipe.lora.rank",
     .meaning = "the output of adapters is scaled by alpha / rank"},
    {.path = "recipe.lora.lora_alpha",
     .treatment = Treatment::kAlias,
     .source = KeySource::kHuggingFace,
     .alias_of = "recipe.lora.alpha"},
    {.path = "recipe.lora.rank_stabilised",
     .field = SLUICE_FIELD(lora.rank_stabilised),
     .default_json = "false",
     .meaning = "scale by alpha / sqrt(rank) instead (PEFT's use_rslora)"},
    {.path = "recipe.lora.use_rslora",
     .treatment = Treatment::kAlias,
     .source = KeySource::kHuggingFace,
     .alias_of = "recipe.lora.rank_stabilised"},
    {.path = "recipe.lora.dropout",
     .field = SLUICE_FIELD(lora.dropout),
     .default_json = "0.0",
     .range = {.minimum = 0, .maximum = 0.999},
     .meaning =
         "dropout probability on the input of an adapter, in training (PEFT's lora_dropout)"},
    {.path = "recipe.lora.lora_dropout",
     .treatment = Treatment::kAlias,
     .source = KeySource::kHuggingFace,
     .alias_of = "recipe.lora.dropout"},
    {.path = "recipe.lora.base_bits",
     .field = SLUICE_FIELD(lora.base_bits),
     .default_json = "16",
     .range = {.minimum = 4, .maximum = 16},
     .meaning = "8 stores the frozen matrices in 8 bits with a scale for every 128 numbers: half "
                "the memory and traffic, at the cost of rounding error; 4 stores those of "
                "blocks in NF4 with a scale for every 64 (bitsandbytes' load_in_4bit with "
                "bnb_4bit_quant_type nf4); 16 stores them in the type of the computation"},
    {.path = "recipe.lora.double_quant",
     .field = SLUICE_FIELD(lora.double_quant),
     .default_json = "false",
     .meaning = "with base_bits 4: the scales are stored in 8 bits, 4.127 bits for a weight "
                "instead of 4.5 (bitsandbytes' bnb_4bit_use_double_quant)"},
    {.path = "recipe.lora.targets",
     .field = SLUICE_FIELD(lora.targets),
     .default_json = "\"auto\"",
     .auto_rule = "[\"all-linear\"]: every linear layer of the model's blocks",
     .meaning = "linear layers that get an adapter, by PEFT's names: [\"q_proj\", \"v_proj\"]; "
                "\"experts\" is all experts of a block, which \"all-linear\" leaves out"},
    {.path = "recipe.lora.target_modules",
     .treatment = Treatment::kAlias,
     .source = KeySource::kHuggingFace,
     .alias_of = "recipe.lora.targets"},
    {.path = "recipe.lora.adapter",
     .field = SLUICE_FIELD(lora.adapter),
     .default_json = "\"\"",
     .meaning = "a folder that PEFT wrote (adapter_config.json, adapter_model.safetensors): "
                "training continues with its adapters, with their rank, alpha, dropout and "
                "targets; empty: new adapters"},
};

std::string preset_choices() {
  std::string choices;
  for (const engine::NamedShape& known : engine::model_presets())
    choices += std::string(known.name) + "|";
  return choices + std::string(kCustomPreset);
}

std::string family_choices() {
  std::string choices;
  for (const engine::ModelFamily* family : engine::model_families())
    choices += (choices.empty() ? "" : "|") + std::string(family->name());
  return choices;
}

// One row per key, even if several families have it.
struct FamilyRow {
  engine::ShapeNumber number;  // the widest range; validate() checks each family's own
  std::string families;
  std::string meaning;
};

const std::list<FamilyRow>& family_rows() {
  static const std::list<FamilyRow> rows = [] {
    std::list<FamilyRow> made;
    for (const engine::ModelFamily* family : engine::model_families()) {
      const std::string name(family->name());
      for (const engine::ShapeNumber& number : family->numbers()) {
        const auto same = std::find_if(made.begin(), made.end(), [&](const FamilyRow& row) {
          return row.number.key == number.key;
        });
        if (same == made.end()) {
          made.push_back({number, name, std::string(number.meaning)});
          continue;
        }
        same->families += "|" + name;
        same->number.minimum = std::min(same->number.minimum, number.minimum);
        same->number.maximum = std::max(same->number.maximum, number.maximum);
        if (number.meaning != same->number.meaning)
          same->meaning += "; of " + name + ": " + std::string(number.meaning);
      }
    }
    return made;
  }();
  return rows;
}

std::vector<Key> join_rows() {
  static const std::string presets = preset_choices();
  static const std::string families = family_choices();
  std::vector<Key> keys = {
      {.path = "model.path",
       .field = SLUICE_FIELD(model.path),
       .default_json = "\"\"",
       .meaning = "a Hugging Face folder (config.json, safetensors files, tokenizer), which gives "
                  "the model's shape and initial weights; or OWNER/NAME on the hub"},
      {.path = "model.preset",
       .field = SLUICE_FIELD(model.preset),
       .default_json = "\"gpt2-small\"",
       .choices = presets,
       .meaning =
           "a named shape; the keys below change single values, and custom needs all of them"},
      {.path = "model.family",
       .field = SLUICE_FIELD(model.family),
       .default_json = "\"auto\"",
       .choices = families,
       .auto_rule = "that of the preset or of model.path; gpt2 for custom",
       .meaning = "the architecture"}};
  keys.insert(keys.end(), std::begin(kRows), std::end(kRows));
  for (const FamilyRow& row : family_rows()) {
    keys.push_back({.path = row.number.key,
                    .field = FamilyNumber{row.number.name()},
                    .default_json = "\"auto\"",
                    .range = {.minimum = row.number.minimum, .maximum = row.number.maximum},
                    .choices = row.number.choices,
                    .families = row.families,
                    .auto_rule = "the preset's, or the family's default",
                    .meaning = row.meaning});
  }
  for (const engine::ModelFamily* family : engine::model_families())
    for (const engine::ShapeList& list : family->lists())
      keys.push_back({.path = list.key,
                      .field = FamilyList{list.name()},
                      .default_json = "\"auto\"",
                      .families = family->name(),
                      .auto_rule = "the preset's, or none",
                      .meaning = list.meaning});
  keys.insert(keys.end(), std::begin(kLoraRows), std::end(kLoraRows));
  // All of these are Sluice's keys.
  for (Key& key : keys) key.source = KeySource::kSluice;
  return keys;
}

}  // namespace

std::span<const Key> model_keys() {
  static const std::vector<Key> keys = join_rows();
  return keys;
}

}  // namespace sluice::config
