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

bool HuggingFaceConfig::flag(const char* key, bool default_value) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_boolean()) return value.get<bool>();
  fail(wrong(key, value, "true or false"));
  return default_value;
}

std::string HuggingFaceConfig::text(const char* key, const std::string& default_value) {
  if (!has(key)) return default_value;
  const Json& value = json_[key];
  if (value.is_string()) return value.get<std::string>();
  fail(wrong(key, value, "a string"));
  return default_value;
}

void HuggingFaceConfig::expect(const char* key, const std::vector<Json>& known) {
  if (!json_.contains(key)) return;
  const Json& value = json_[key];
  if (std::find(known.begin(), known.end(), value) == known.end())
    refuse(key, value, known.front().dump());
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
