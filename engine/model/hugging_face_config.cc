#include "engine/model/hugging_face_config.h"

#include <algorithm>

namespace sluice::engine {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 32;

Error wrong(const char* key, const HuggingFaceConfig::Json& value, const std::string& what) {
  return {ErrorCode::kCorrupt,
          "\"" + std::string(key) + "\" is " + value.dump() + ", which is not " + what};
}

}  // namespace

void HuggingFaceConfig::fail(const Error& error) {
  if (status_.ok()) status_ = error;
}

void HuggingFaceConfig::refuse(const std::string& key, const Json& value,
                               const std::string& wanted) {
  fail(Error(ErrorCode::kInvalidArgument, "\"" + key + "\" is " + value.dump() +
                                              ", but Sluice supports " + models_ + " with " +
                                              wanted + " only"));
}

void HuggingFaceConfig::refuse_null(const char* key) {
  if (json_.contains(key) && !has(key)) refuse(key, Json(), "a value");
}

bool HuggingFaceConfig::has(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

std::int64_t HuggingFaceConfig::count(const char* key, std::int64_t default_value,
                                      std::int64_t minimum) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_number_integer() && value >= minimum && value <= kLargest)
    return value.get<std::int64_t>();
  fail(wrong(key, value, "a valid count"));
  return default_value;
}

double HuggingFaceConfig::number(const char* key, double default_value, double minimum,
                                 double maximum) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_number() && value >= minimum && value <= maximum) return value.get<double>();
  fail(wrong(key, value, "a number from " + Json(minimum).dump() + " to " + Json(maximum).dump()));
  return default_value;
}

double HuggingFaceConfig::probability(const char* key, double default_value) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_number() && value >= 0 && value < 1) return value.get<double>();
  fail(wrong(key, value, "a dropout probability"));
  return default_value;
}

bool HuggingFaceConfig::flag(const char* key, bool default_value) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_boolean()) return value.get<bool>();
  fail(wrong(key, value, "true or false"));
  return default_value;
}

std::vector<double> HuggingFaceConfig::numbers(const char* key) {
  if (!has(key)) return {};
  const Json& value = json_[key];
  const auto is_number = [](const Json& one) { return one.is_number(); };
  if (value.is_array() && std::all_of(value.begin(), value.end(), is_number))
    return value.get<std::vector<double>>();
  fail(wrong(key, value, "a list of numbers"));
  return {};
}

HuggingFaceConfig::Json HuggingFaceConfig::object(const char* key) {
  if (!has(key)) return Json::object();
  if (json_[key].is_object()) return json_[key];
  fail(wrong(key, json_[key], "an object"));
  return Json::object();
}

void HuggingFaceConfig::expect(const char* key, const std::vector<Json>& known) {
  if (!json_.contains(key)) return;
  const Json& value = json_[key];
  if (std::find(known.begin(), known.end(), value) == known.end())
    refuse(key, value, known.front().dump());
}

std::int64_t HuggingFaceConfig::full_interval(std::int64_t default_value, std::int64_t layers,
                                              const std::string& other) {
  constexpr const char* kTypes = "layer_types";
  constexpr const char* kFull = "full_attention";
  if (!has(kTypes)) return default_value;
  const Json& types = json_[kTypes];
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers) {
    fail(wrong(kTypes, types, "one of each of " + std::to_string(layers) + " layers"));
    return default_value;
  }
  const auto first = std::find(types.begin(), types.end(), Json(kFull));
  const std::int64_t interval = first - types.begin() + 1;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Json wanted = (layer + 1) % interval == 0 ? Json(kFull) : Json(other);
    if (types[static_cast<std::size_t>(layer)] == wanted) continue;
    refuse(kTypes, types,
           "one repeating order of layers, each of which ends with \"full_attention\"");
    break;
  }
  return interval;
}

Result<HuggingFaceConfig::Json> text_part(const HuggingFaceConfig::Json& json,
                                          const std::string& model, bool is_tied) {
  constexpr const char* kTied = "tie_word_embeddings";
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object())
    return Error(ErrorCode::kCorrupt, "a " + model +
                                          " that sees images needs \"text_config\", an object with "
                                          "its text model");
  HuggingFaceConfig::Json inner = *text;
  for (const char* const key :
       {"architectures", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id"})
    if ((!inner.contains(key) || inner[key].is_null()) && json.contains(key))
      inner[key] = json[key];
  const HuggingFaceConfig::Json outer = json.value(kTied, HuggingFaceConfig::Json(is_tied));
  if (json.contains(kTied) && inner.contains(kTied) && inner[kTied] != outer)
    return Error(ErrorCode::kCorrupt, "\"" + std::string(kTied) + "\" is " + outer.dump() +
                                          ", but " + inner[kTied].dump() +
                                          " in \"text_config\"; they must be the same");
  inner[kTied] = outer;
  return inner;
}

std::string hugging_face_dtype(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace sluice::engine
