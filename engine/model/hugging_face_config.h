// HuggingFaceConfig: the keys of a transformers config.json, read one by one. The first that is
// wrong is kept, and everything read after it has its default: a reader asks for all it needs and
// then for the status.
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

  // `models`: whose config.json it is, for sentences ("Llamas").
  HuggingFaceConfig(Json object, std::string models)
      : json_(std::move(object)), models_(std::move(models)) {}

  const Json& json() const { return json_; }
  const Status& status() const { return status_; }
  // Keeps an error, unless there is one.
  void fail(const Error& error);
  // That Sluice does not compute a model with this value: kInvalidArgument.
  void refuse(const std::string& key, const Json& value, const std::string& wanted);

  // null counts as missing. kCorrupt where a value is of another kind.
  bool has(const char* key) const;
  std::int64_t count(const char* key, std::int64_t default_value, std::int64_t minimum = 1);
  double number(const char* key, double default_value, double minimum, double maximum);
  bool flag(const char* key, bool default_value);
  std::string text(const char* key, const std::string& default_value);
  // Refuses all values but these, of which the first is the default.
  void expect(const char* key, const std::vector<Json>& known);

 private:
  Json json_;
  std::string models_;
  Status status_;
};

// transformers' name of the dtype of weights.
std::string hugging_face_dtype(DType dtype);

}  // namespace sluice::engine
