// A family's config.json in tests: changed, read, refused, and written again.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/families/families.h"

namespace sluice::engine {

using nlohmann::json;

inline json with(json config, const json& more) {
  config.update(more);
  return config;
}

// The model, which must be valid.
inline HuggingFaceModel read_valid(const json& config) {
  const auto model = read_hugging_face_config(config.dump());
  EXPECT_TRUE(model.ok()) << model.error().message();
  if (!model.ok()) return {};
  const Status valid = validate(model->shape);
  EXPECT_TRUE(valid.ok()) << valid.error().message();
  return *model;
}

// Why there is no such model.
inline std::string refused(const json& config, ErrorCode code = ErrorCode::kInvalidArgument) {
  const auto model = read_hugging_face_config(config.dump());
  const Status status = model.ok() ? validate(model->shape) : Status(model.error());
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.error().code(), code) << config;
  return status.error().message();
}

// Writes the model of `config`, whose values the file must have, and reads the same from it.
inline void expect_writes_what_it_reads(const json& config) {
  const HuggingFaceModel model = read_valid(config);
  const json written = json::parse(family_of(model.shape).write_config(model));
  for (const auto& [key, value] : config.items()) {
    const bool is_unused = key == "initializer_range" || key == "transformers_version" ||
                           key == "use_cache" || key == "use_bidirectional_attention";
    if (is_unused) continue;
    EXPECT_EQ(written.value(key, json()), value) << key;
  }
  const HuggingFaceModel again = read_valid(written);
  EXPECT_EQ(again.shape.numbers, model.shape.numbers);
  EXPECT_EQ(again.shape.lists, model.shape.lists);
  EXPECT_EQ(again.special, model.special);
}

}  // namespace sluice::engine
