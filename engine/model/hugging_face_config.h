// HuggingFaceConfig: reads the keys of a transformers config.json one by one. It keeps the first
// error, and every later read returns its default. A reader can thus read all it needs and then
// check the status.
//
// Memory: copies the object. Threads: one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

class HuggingFaceConfig {
 public:
  using Json = nlohmann::ordered_json;

  // `models`: the models whose config.json this is, for messages ("Llamas").
  HuggingFaceConfig(Json object, std::string models)
      : json_(std::move(object)), models_(std::move(models)) {}

  const Json& json() const { return json_; }
  const Status& status() const { return status_; }
  // Keeps an error, unless there is one.
  void fail(const Error& error);
  // Fails with kInvalidArgument: Sluice does not compute a model with this value.
  void refuse(const std::string& key, const Json& value, const std::string& wanted);

  void refuse_null(const char* key);
  // null counts as missing. kCorrupt if a value has another type.
  bool has(const char* key) const;
  std::int64_t count(const char* key, std::int64_t default_value, std::int64_t minimum = 1);
  double number(const char* key, double default_value, double minimum, double maximum);
  double probability(const char* key, double default_value);  // at least 0 and below 1
  bool flag(const char* key, bool default_value);
  std::vector<double> numbers(const char* key);  // by default an empty list
  Json object(const char* key);                  // by default an empty one
  // Refuses all values but these; the first is the default.
  void expect(const char* key, const std::vector<Json>& known);

  // layer_types as one number: each so many layers are `other`, but the last of them, which is
  // "full_attention". Larger than `layers`: all are `other`. `default_value`: without layer_types.
  std::int64_t full_interval(std::int64_t default_value, std::int64_t layers,
                             const std::string& other);

 private:
  Json json_;
  std::string models_;
  Status status_;
};

// The "text_config" of a model that also sees images, with what only the outer object says.
// `model`: its name in messages. `is_tied`: the outer class' default of tie_word_embeddings.
Result<HuggingFaceConfig::Json> text_part(const HuggingFaceConfig::Json& json,
                                          const std::string& model, bool is_tied);

// transformers' name of a weights dtype.
std::string hugging_face_dtype(DType dtype);

}  // namespace sluice::engine
