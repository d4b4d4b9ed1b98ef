#include "engine/families/config_rows.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "aio/bounded_json.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

// ---- reading -----------------------------------------------------------------------------------

double word_at(ConfigReading& reading, const ConfigRow& row, double default_value) {
  const Json value = reading.config.json().value(row.key, Json(row.number.text(default_value)));
  std::string said = value.is_string() ? value.get<std::string>() : "";
  for (const auto& [other, usual] : row.synonyms)
    if (said == other) said = usual;
  std::string known;
  const int most = static_cast<int>(row.number.most());
  for (int place = 0; place <= most; ++place) {
    const std::string word = row.number.text(place);
    if (said == word) return place;
    known += (place == 0 ? "\"" : place == most ? " or \"" : ", \"") + word + "\"";
  }
  reading.config.refuse(std::string(row.key), value, known);
  return default_value;
}

double number_at(ConfigReading& reading, const ConfigRow& row) {
  const ShapeNumber& number = row.number;
  const std::string key(row.key);
  const Json of_class = reading.type.default_of(row.key, row.of_class);
  HuggingFaceConfig& config = reading.config;
  if (number.choices == kSwitchChoices) {
    const bool other = of_class.is_null() ? number.default_value != 0 : of_class.get<bool>();
    return config.flag(key.c_str(), other) ? 1 : 0;
  }
  const double other = of_class.is_null() ? number.default_value : of_class.get<double>();
  if (!number.choices.empty()) return word_at(reading, row, other);
  if (number.whole)
    return static_cast<double>(config.count(key.c_str(), static_cast<std::int64_t>(other)));
  return config.number(key.c_str(), other, number.minimum, number.maximum);
}

// Where the value of a row goes, for rows with the same.
std::string target_of(const ConfigRow& row, const std::vector<ConfigRow>& rows) {
  if (row.has_number()) return std::string(row.number.key);
  for (const ConfigRow& first : rows)
    if (row.size != nullptr && first.size == row.size) return std::string(first.key);
  return {};
}

using KeysByTarget = std::map<std::string, std::string>;

// Whether to read the row: not if another one has given its value, or its default.
bool is_next(ConfigReading& reading, const std::string& key, const std::string& target,
             KeysByTarget& keys) {
  const auto [earlier, is_first] = keys.try_emplace(target);
  if (!reading.config.has(key.c_str())) return is_first;
  if (earlier->second.empty()) {
    earlier->second = key;
    return true;
  }
  const Json& one = reading.config.json()[earlier->second];
  const Json& other = reading.config.json()[key];
  if (one != other)
    reading.config.fail(Error(ErrorCode::kCorrupt, "\"" + earlier->second + "\" is " + one.dump() +
                                                       " and \"" + key + "\" is " + other.dump() +
                                                       ", which must be the same"));
  return false;
}

void read_row(ConfigReading& reading, const ConfigRow& row, const std::vector<ConfigRow>& rows,
              KeysByTarget& keys) {
  HuggingFaceConfig& config = reading.config;
  if (row.part.read != nullptr) return row.part.read(reading);
  const std::string key(row.key);
  if (key.empty() || row.use == ConfigUse::kWritten || row.use == ConfigUse::kOfPart) return;
  if (!row.only.empty()) return config.expect(key.c_str(), row.only);
  const bool is_null = config.json().contains(key) && !config.has(key.c_str());
  if (row.null == ConfigNull::kRefused) config.refuse_null(key.c_str());
  const std::string target = target_of(row, rows);
  if (!target.empty() && !is_next(reading, key, target, keys)) return;
  if (row.dropout != nullptr) {
    const Json of_class = reading.type.default_of(row.key, row.of_class);
    reading.shape().*row.dropout =
        config.probability(key.c_str(), of_class.is_null() ? 0 : of_class.get<double>());
  } else if (row.size != nullptr) {
    const Json of_class = reading.type.default_of(row.key, row.of_class);
    reading.shape().*row.size =
        config.count(key.c_str(), of_class.is_null() ? 0 : of_class.get<std::int64_t>());
  } else if (is_null && row.null == ConfigNull::kDerived) {
    reading.numbers()[std::string(row.number.name())] = 0;
  } else {
    reading.numbers()[std::string(row.number.name())] = number_at(reading, row);
  }
}

// ---- the class ---------------------------------------------------------------------------------

// The first Llamas' files have "LLaMAForCausalLM".
bool same_but_for_case(const Json& one, const std::string& name) {
  if (!one.is_string()) return false;
  const auto& text = one.get_ref<const std::string&>();
  return std::equal(text.begin(), text.end(), name.begin(), name.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
}

void check_class(HuggingFaceConfig& config, const FamilyTable& table, const FamilyClass& type) {
  constexpr std::string_view kCausal = "ForCausalLM";
  constexpr const char* kQuantized = "quantization_config";
  if (config.has("architectures") && type.architecture.ends_with(kCausal)) {
    const Json& all = config.json()["architectures"];
    const std::string name(type.architecture.substr(0, type.architecture.size() - kCausal.size()));
    std::vector<std::string> known = {name + "ForCausalLM", name + "Model"};
    if (!table.left_out.empty()) {
      known.push_back(name + "ForConditionalGeneration");
      known.push_back(name + "TextModel");
    }
    const auto is_known = [&](const Json& one) {
      return std::any_of(known.begin(), known.end(), [&](const std::string& name_of) {
        return same_but_for_case(one, name_of);
      });
    };
    if (!all.is_array() || (!all.empty() && std::none_of(all.begin(), all.end(), is_known)))
      config.refuse("architectures", all, "[\"" + known.front() + "\"]");
  }
  if (!config.has(kQuantized)) return;
  const Json& quantization = config.json()[kQuantized];
  const bool is_mxfp4 =
      quantization.is_object() && quantization.value("quant_method", Json()) == "mxfp4";
  // engine/weights/stacked_weights.h reads these as bf16.
  if (!type.reads_mxfp4 || !is_mxfp4)
    config.refuse(kQuantized, quantization, "weights of 16 bits or more (none)");
}

Result<SpecialTokens> special_tokens(const Json& json, const FamilyClass& type,
                                     std::int64_t vocab) {
  SLUICE_ASSIGN_OR_RETURN(SpecialTokens tokens, parse_special_tokens(json.dump()));
  if (type.begin >= 0 && !json.contains("bos_token_id")) tokens.begin = type.begin;
  if (type.end >= 0 && !json.contains("eos_token_id")) tokens.ends = {type.end};
  if (type.padding >= 0 && !json.contains("pad_token_id")) tokens.padding = type.padding;
  return tokens.within(vocab);
}

const FamilyClass* class_named(const FamilyTable& table, const Json& name) {
  for (const FamilyClass& one : table.classes)
    if (name == std::string(one.model_type)) return &one;
  return nullptr;
}

bool is_tied_outside(const FamilyTable& table) {
  const ConfigRow* row = table.row_of("tied_head");
  return row != nullptr && row->number.default_value != 0;
}

}  // namespace

Result<HuggingFaceModel> read_by_rows(const FamilyTable& table, std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(Json json, read_json_object<Json>(text));
  const FamilyClass* type = class_named(table, json.value("model_type", Json()));
  if (type == nullptr)
    return Error(ErrorCode::kInvalidArgument,
                 "\"model_type\" is " + json.value("model_type", Json()).dump() +
                     ", which is not of the family " + std::string(table.name));
  HuggingFaceModel model;
  model.shape.family = table.name;
  if (!type->text_type.empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        json, text_part(json, std::string(type->models.substr(0, type->models.size() - 1)),
                        is_tied_outside(table)));
    type = class_named(table, std::string(type->text_type));
    model.notes.emplace_back(table.left_out);
  }
  HuggingFaceConfig config(json, std::string(type->models));
  check_class(config, table, *type);
  if (!type->by_layer.empty() && json.contains("layer_types"))
    type = class_named(table, std::string(type->by_layer));
  if (table.row_of("architecture") != nullptr)
    model.shape.numbers["architecture"] = static_cast<double>(type - table.classes.data());
  ConfigReading reading = {.table = table, .config = config, .type = *type, .model = model};
  KeysByTarget keys;
  for (const ConfigRow& row : table.rows)
    if (row.is_of(type->model_type)) read_row(reading, row, table.rows, keys);
  if (table.finish != nullptr) table.finish(reading);
  SLUICE_RETURN_IF_ERROR(config.status());
  SLUICE_ASSIGN_OR_RETURN(model.special, special_tokens(json, *type, model.shape.vocab));
  return model;
}

// ---- writing -----------------------------------------------------------------------------------

namespace {

Json value_of(const ShapeReader& of, const ConfigRow& row) {
  if (!row.only.empty()) return row.only.front();
  if (row.dropout != nullptr) return of.shape().*row.dropout;
  if (row.size == &ModelShape::ffn_hidden) return of.shape().ffn();
  if (row.size != nullptr) return of.shape().*row.size;
  const double value = of.number(row.number.name());
  if (value == 0 && row.null == ConfigNull::kDerived) return {};
  if (row.number.choices == kSwitchChoices) return value != 0;
  if (!row.number.choices.empty()) return row.number.text(value);
  if (row.number.whole) return static_cast<std::int64_t>(value);
  return value;
}

void write_row(const ShapeReader& of, const ConfigRow& row, Json& json) {
  if (row.part.write != nullptr) return row.part.write(of, json);
  const bool is_usual = row.use == ConfigUse::kWrittenIfOther &&
                        of.number(row.number.name()) == row.number.default_value;
  const bool elsewhere = row.use == ConfigUse::kRead || row.use == ConfigUse::kOfPart;
  if (row.key.empty() || elsewhere || is_usual) return;
  json[std::string(row.key)] = value_of(of, row);
}

}  // namespace

std::string write_by_rows(const FamilyTable& table, const HuggingFaceModel& model) {
  const ShapeReader of(table, model.shape);
  const FamilyClass& type = of.type();
  Json json = {{"architectures", {std::string(type.architecture)}},
               {"model_type", std::string(type.model_type)}};
  for (const ConfigRow& row : table.rows)
    if (row.is_of(type.model_type)) write_row(of, row, json);
  json["bos_token_id"] = to_json(model.special.begin);
  json["eos_token_id"] = to_json(model.special.ends);
  json["pad_token_id"] = to_json(model.special.padding);
  json["dtype"] = hugging_face_dtype(model.dtype);
  if (table.writes_older_dtype) json["torch_dtype"] = hugging_face_dtype(model.dtype);
  return json.dump(2) + "\n";
}

}  // namespace sluice::engine
