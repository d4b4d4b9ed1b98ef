#include "engine/exchange/model_card.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "aio/text.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/data/token_file.h"
#include "engine/families/families.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

// JSON strings are valid YAML.
std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

// Markdown code; characters that would end it are replaced.
std::string code(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char letter) { return letter == '`' || letter < ' ' || letter == 0x7F; }, '?');
  return "`" + text + "`";
}

std::string short_name(const std::string& path) {
  const std::string folder = last_name(parent_folder(path));
  const std::string name = last_name(path);
  return folder.empty() || folder == "." || folder == "/" ? name : folder + "/" + name;
}

// Reads a configuration by JSON pointer; null for a missing key.
class Keys {
 public:
  explicit Keys(const std::string& configuration) : json_(json_or_discarded<Json>(configuration)) {}

  Json at(const char* pointer) const {
    const Json::json_pointer place(pointer);
    return json_.is_object() && json_.contains(place) ? json_.at(place) : Json();
  }
  std::string text(const char* pointer) const {
    const Json found = at(pointer);
    return found.is_string() ? found.get<std::string>() : std::string();
  }
  std::uint64_t count(const char* pointer) const {
    const Json found = at(pointer);
    return found.is_number_integer() && found > 0 ? found.get<std::uint64_t>() : 0;
  }
  std::vector<std::string> paths(const char* pointer) const {
    std::vector<std::string> paths;
    const Json found = at(pointer);
    for (const Json& path : found.is_array() ? found : Json::array())
      if (path.is_string()) paths.push_back(path.get<std::string>());
    return paths;
  }

 private:
  Json json_;
};

// "lr 0.001, betas [0.9,0.95]": numbers and lists of numbers, under their keys in the
// configuration.
std::string listed(const Json& params) {
  std::string text;
  if (!params.is_object()) return text;
  for (const auto& [key, value] : params.items()) {
    if (value.is_null() || value.is_object()) continue;
    const std::string shown = value.is_string() ? value.get<std::string>()
                              : value.is_number_float()
                                  ? significant(value.get<double>())
                                  : value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (!text.empty()) text += ", ";
    text += key;
    text += ' ';
    text += shown;
  }
  return text;
}

// transformers' name for such a model, such as "qwen3" for one of the family "llama".
std::string model_type(const ModelCard& card) {
  const ModelShape shape = complete(card.shape);
  const Json config = json_or_discarded<Json>(
      family_of(shape).write_config({.shape = shape, .special = {}, .notes = {}}));
  const Json type = config.is_object() ? config.value("model_type", Json()) : Json();
  return type.is_string() ? type.get<std::string>() : card.shape.family;
}

bool is_trained(const ModelCard& card) { return card.state.position.global_step > 0; }

std::string metadata(const ModelCard& card) {
  std::string text = "---\n";
  const BaseModel& base = card.base;
  if (!base.name.empty()) text += "base_model: " + quoted(base.name) + "\n";
  if (!base.name.empty() && card.is_adapter()) text += "base_model_relation: adapter\n";
  text += std::string("library_name: ") + (card.is_adapter() ? "peft" : "transformers") + "\n";
  if (!base.license.empty()) text += "license: " + quoted(base.license) + "\n";
  if (!base.license_name.empty()) text += "license_name: " + quoted(base.license_name) + "\n";
  // A link relative to the base's folder would be broken here.
  if (base.license_link.starts_with("http"))
    text += "license_link: " + quoted(base.license_link) + "\n";
  text += "pipeline_tag: text-generation\ntags:\n- sluice\n- " + quoted(model_type(card)) + "\n";
  if (card.lora.exists()) text += "- lora\n";
  return text + "---\n";
}

// The recipe in words: rank, alpha, options and targets.
std::string recipe_text(const LoraRecipe& lora) {
  std::string text = "rank " + std::to_string(lora.rank) + ", alpha " + significant(lora.alpha) +
                     (lora.rank_stabilised ? ", rank-stabilised" : "") +
                     (lora.dropout > 0 ? ", dropout " + significant(lora.dropout) : std::string());
  for (std::size_t i = 0; i < lora.targets.size(); ++i)
    text += (i == 0 ? ", beside " : ", ") + lora.targets[i];
  if (lora.base_bits != 16)
    text +=
        ", which had " + std::to_string(lora.base_bits) + " bits" +
        (lora.base_bits == 4 ? lora.double_quant ? " (NF4, double quantisation)" : " (NF4)" : "") +
        " in training";
  return text;
}

std::string adapter_introduction(const ModelCard& card) {
  const std::string base =
      card.base.name.empty() ? std::string("a model that is not known") : code(card.base.name);
  return "\n# " + card.name + "\n\nThese are LoRA adapters (" + recipe_text(card.lora) + "; " +
         counted(card.parameters, "parameter") + ") for " + base + ".\n";
}

// For example "; activation gelu, tied_head false": what differs from the family's first models.
std::string variant_text(const ModelShape& shape) {
  std::string text;
  for (const ShapeNumber& one : family_of(shape).numbers()) {
    const auto found = shape.numbers.find(std::string(one.name()));
    if (!one.omit_if_default || found == shape.numbers.end() ||
        !one.should_serialise(found->second))
      continue;
    text += (text.empty() ? "; " : ", ") + std::string(one.name()) + " " + one.text(found->second);
  }
  return text;
}

std::string introduction(const ModelCard& card, const Keys& keys) {
  if (card.is_adapter()) return adapter_introduction(card);
  std::string text = "\n# " + card.name + "\n\n";
  const std::string of =
      "a causal language model of the " + model_type(card) + " family, " +
      counted(card.parameters, "parameter") + " (" + std::to_string(card.shape.layers) +
      " layers of width " + std::to_string(card.shape.hidden) + ", a vocabulary of " +
      std::to_string(card.shape.vocab) + ", a context of " +
      std::to_string(card.shape.context_tokens) + " tokens" + variant_text(card.shape) + ")";
  text += "This is " + of;
  const std::string weights = keys.text("/model/init_from");
  if (!is_trained(card)) {
    text += ". Its weights are those of " +
            (card.base.name.empty() ? std::string("another folder") : code(card.base.name)) +
            ", and were not trained further.\n";
  } else if (!card.base.name.empty()) {
    text += ", trained from " + code(card.base.name) +
            (card.base.revision.empty() ? "" : " at commit " + code(card.base.revision)) + ".\n";
  } else if (!weights.empty()) {
    text += ", trained from the weights in " + code(short_name(weights)) + ".\n";
  } else {
    text += ", trained from random weights.\n";
  }
  if (!card.base.name.empty() && card.base.license.empty())
    text += "\nThe license of " + code(card.base.name) +
            " was not in its folder; it also applies to models derived from it.\n";
  for (const std::string& note : card.base.notes) text += "\nNote: " + note + ".\n";
  return text;
}

std::string files_text(const char* what, const std::vector<ModelCard::DataFile>& files) {
  std::string text;
  for (const ModelCard::DataFile& file : files) {
    text += std::string("- ") + what + ": " + code(short_name(file.path));
    if (file.tokens > 0) text += ", " + counted(file.tokens, "token");
    if (file.documents > 0)
      text += " in " + counted(file.documents, "document") + "; " +
              std::to_string(file.trained_tokens) + " tokens are trained on";
    text += '\n';
  }
  return text;
}

std::string batch_text(const Keys& keys) {
  const std::uint64_t sequences = keys.count("/train_batch_size");
  const std::uint64_t length = keys.count("/data/sequence_length");
  if (sequences == 0 || length == 0) return {};
  return "- batch: " + counted(sequences, "sequence") + " of " + counted(length, "token") + " (" +
         std::to_string(keys.count("/gradient_accumulation_steps")) + " x " +
         std::to_string(keys.count("/train_micro_batch_size_per_gpu")) + ")\n";
}

std::string method_text(const char* what, const Keys& keys, const std::string& section) {
  const std::string type = keys.text((section + "/type").c_str());
  if (type.empty()) return {};
  const std::string params = listed(keys.at((section + "/params").c_str()));
  return std::string("- ") + what + ": " + type + (params.empty() ? "" : " (" + params + ")") +
         "\n";
}

std::string training_text(const ModelCard& card, const Keys& keys) {
  const StoredPosition& position = card.state.position;
  std::string text = "\n## Training\n\n";
  text += files_text("training data", card.training);
  text += files_text("validation data", card.validation);
  const Json fraction = keys.at("/data/validation_fraction");
  if (card.validation.empty() && fraction.is_number() && fraction > 0)
    text += "- validation data: the end of the training data, " +
            significant(fraction.get<double>()) + " of it\n";
  text += "- steps: " + std::to_string(position.global_step);
  if (position.applied_step != position.global_step)
    text += ", of which " + std::to_string(position.applied_step) + " changed the weights";
  text += '\n';
  if (card.merged) text += "- LoRA, merged: " + recipe_text(card.lora) + "\n";
  const std::uint64_t length = keys.count("/data/sequence_length");
  if (length > 0)
    text += "- tokens seen: " + std::to_string(position.samples_drawn * length) + " (" +
            counted(position.samples_drawn, "sequence") + ", padding included)\n";
  text += batch_text(keys);
  text += method_text("optimizer", keys, "/optimizer");
  const std::string schedule = method_text("learning rate schedule", keys, "/scheduler");
  text += schedule.empty() ? "- learning rate schedule: constant\n" : schedule;
  const Json clipping = keys.at("/gradient_clipping");
  if (clipping.is_number() && clipping > 0)
    text += "- gradient clipping: " + significant(clipping.get<double>()) + "\n";
  text += "- precision: " + card.state.run.precision + "\n";
  if (card.state.loss)
    text += "- training loss of the last step: " + significant(*card.state.loss) + "\n";
  if (card.state.validation_loss)
    text += "- last evaluation loss: " + significant(*card.state.validation_loss) +
            " (perplexity " + significant(std::exp(*card.state.validation_loss)) + ")\n";
  return text;
}

std::string adapter_use_text(const ModelCard& card) {
  return "\n## Use\n\n`adapter_config.json` names the base model.\n\n```python\nfrom peft import "
         "AutoPeftModelForCausalLM\n\nmodel = AutoPeftModelForCausalLM.from_pretrained(" +
         quoted(card.name) + ")\n```\n";
}

std::string use_text(const ModelCard& card) {
  if (card.is_adapter()) return adapter_use_text(card);
  const std::string path = quoted(card.name);
  std::string text = "\n## Use\n\n```python\nfrom transformers import AutoModelForCausalLM" +
                     std::string(card.has_tokenizer ? ", AutoTokenizer" : "") +
                     "\n\nmodel = AutoModelForCausalLM.from_pretrained(" + path + ")\n";
  if (card.has_tokenizer) text += "tokenizer = AutoTokenizer.from_pretrained(" + path + ")\n";
  return text + "```\n";
}

ModelCard::DataFile look_at(const std::string& path, const std::string& type) {
  ModelCard::DataFile found{.path = path};
  const auto file = data::TokenFile::open(path, {.type = data::token_type_named(type)});
  if (!file.ok()) return found;
  found.tokens = file->token_count();
  if (const data::TokenDocuments* const documents = file->documents()) {
    found.documents = documents->count();
    found.trained_tokens = documents->trained_tokens();
  }
  return found;
}

}  // namespace

std::string model_card_text(const ModelCard& card) {
  const Keys keys(card.state.configuration);
  std::string text = metadata(card) + introduction(card, keys);
  if (is_trained(card)) text += training_text(card, keys);
  text += use_text(card);
  std::string dtype(to_string(card.dtype));
  return text + "\nWeights are stored as " + dtype + ". Written by Sluice " + SLUICE_VERSION +
         (is_trained(card) && card.state.program_version != SLUICE_VERSION
              ? ", from a checkpoint of Sluice " + card.state.program_version
              : "") +
         ".\n";
}

Status write_model_papers(aio::IoQueue& queue, const CheckpointReader& checkpoint,
                          const ExportMetadata& metadata) {
  ModelCard card{.name = last_name(absolute_folder(metadata.folder)),
                 .state = checkpoint.state(),
                 .shape = metadata.shape,
                 .lora = metadata.lora,
                 .merged = metadata.merged,
                 .parameters = metadata.merged
                                   ? model_layout({.shape = metadata.shape}).parameter_elements()
                                   : checkpoint.manifest().elements,
                 .dtype = metadata.dtype,
                 .has_tokenizer = metadata.has_tokenizer};
  const Keys keys(card.state.configuration);
  SLUICE_ASSIGN_OR_RETURN(
      card.base, base_model_of_run(queue, metadata.run_directory, keys.text("/model/init_from")));
  if (!metadata.base_name.empty()) {
    card.base.name = metadata.base_name;
    card.base.revision.clear();
  }
  SLUICE_RETURN_IF_ERROR(complete_generation_config(queue, card.base, metadata.folder));
  if (is_trained(card)) {
    const std::string type = keys.text("/data/dtype");
    for (const std::string& path : keys.paths("/data/train"))
      card.training.push_back(look_at(path, type));
    for (const std::string& path : keys.paths("/data/validation"))
      card.validation.push_back(look_at(path, type));
  }
  return aio::write_small_file(queue, metadata.folder + "/README.md", model_card_text(card));
}

namespace {

constexpr const char* kFromModel = "_from_model_config";
constexpr std::array<std::string_view, 4> kNotTaken = {kFromModel, "bos_token_id", "eos_token_id",
                                                       "pad_token_id"};

}  // namespace

Status complete_generation_config(aio::IoQueue& queue, const BaseModel& base,
                                  const std::string& folder) {
  const std::string path = folder + "/" + std::string(kGenerationConfigName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  Json json = Json::object();
  if (there) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            aio::read_small_file(queue, path, kMaxGenerationConfigBytes));
    json = json_or_discarded<Json>(text);
    if (!json.is_object()) return Error(ErrorCode::kCorrupt, path + " is not a JSON object");
  }
  const Json settings = json_or_discarded<Json>(base.generation_config);
  const std::size_t before = json.size();
  if (settings.is_object()) {
    for (const auto& [key, value] : settings.items())
      if (std::find(kNotTaken.begin(), kNotTaken.end(), key) == kNotTaken.end() &&
          !json.contains(key))
        json[key] = value;
  }
  if (json.empty()) json[kFromModel] = true;
  if (there && json.size() == before) return {};
  return aio::write_small_file(queue, path, json.dump(2) + "\n");
}

}  // namespace sluice::engine
