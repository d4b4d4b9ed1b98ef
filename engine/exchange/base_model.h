// The model that a run began with, as far as an export has to know it: its name, its license and
// how it generates. A run keeps it from its beginning, as the base's folder may be gone later:
//
//   DIR/base_model.json   {"name": "Qwen/Qwen3-0.6B", "folder": "/models/Qwen3-0.6B",
//                          "license": "apache-2.0", "license_name": "", "license_link": "",
//                          "dtype": "bfloat16", "generation_config": {...}}
//
// The name is the hub's where the folder lies in a cache of the hub, or its config.json has one
// that ends with the folder's ("_name_or_path"); else the folder's. `dtype` is that of its weights,
// as config.json has it. The license is that of the metadata at the head of the folder's README.md.
//
// Errors: kCorrupt where a run's file cannot be read. What is wrong with a base's README.md or
// generation_config.json only leaves it unknown here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

struct BaseModel {
  std::string name;
  std::string folder;   // empty: there is no base, or it is not known
  std::string license;  // each empty: not known
  std::string license_name;
  std::string license_link;
  std::string generation_config;    // JSON
  std::optional<DType> dtype = {};  // of its weights; nothing: not known

  friend bool operator==(const BaseModel&, const BaseModel&) = default;
};

// "/a/b" of "b/", wherever that is; links are not followed.
std::string absolute_folder(const std::string& folder);

inline constexpr std::string_view kBaseModelName = "base_model.json";

// What `weights` (a file, an index or a folder) are of. Weights of another run have its base;
// without a config.json of a model beside them nothing is known.
Result<BaseModel> base_model_of(aio::IoQueue& queue, const std::string& weights);

// Into a run's directory; nothing where there is no base.
Status keep_base_model(aio::IoQueue& queue, const BaseModel& base, const std::string& directory);
Result<BaseModel> kept_base_model(aio::IoQueue& queue, const std::string& directory);
// What a run's directory keeps (empty: there is none), else what `weights`, with which its
// configuration says that it began, are of if they are still there.
Result<BaseModel> base_model_of_run(aio::IoQueue& queue, const std::string& directory,
                                    const std::string& weights);

}  // namespace sluice::engine
