// The model that a run began with, as far as an export needs it: name, license and generation
// settings. A run stores these when it begins, as the base's folder may be gone later:
//
//   DIR/base_model.json   {"name": "Qwen/Qwen3-0.6B", "revision": "",
//                          "folder": "/models/Qwen3-0.6B",
//                          "license": "apache-2.0", "license_name": "", "license_link": "",
//                          "dtype": "bfloat16", "generation_config": {...}, "notes": []}
//
// The name is the hub's if the folder is in a cache of the hub, or if "_name_or_path" in its
// config.json ends with the folder's name. Otherwise it is the folder's name. The revision is
// the commit that the cache's folder is of. `dtype` is that of
// the weights, from config.json. The license is from the metadata at the top of the folder's
// README.md.
//
// Errors: kCorrupt if a run's file cannot be read. A faulty README.md or generation_config.json of
//         a base only leaves its fields empty.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

struct BaseModel {
  std::string name;
  std::string revision = {};  // the commit of a folder in the hub's cache; empty: unknown
  std::string folder;         // empty: no base, or unknown
  std::string license;        // empty: unknown; also for the next two
  std::string license_name;
  std::string license_link;
  std::string generation_config;        // JSON
  std::optional<DType> dtype = {};      // of its weights; empty: unknown
  std::vector<std::string> notes = {};  // HuggingFaceModel::notes

  friend bool operator==(const BaseModel&, const BaseModel&) = default;
};

// "/a/b" for "b/", wherever that is; links are not followed.
std::string absolute_folder(const std::string& folder);

inline constexpr std::string_view kBaseModelName = "base_model.json";

// The model that `weights` (a file, an index or a folder) belong to. Weights of another run have
// that run's base. Without a model's config.json next to them, the model is unknown.
Result<BaseModel> base_model_of(aio::IoQueue& queue, const std::string& weights);

// Writes the base into a run's directory; does nothing if there is no base.
Status keep_base_model(aio::IoQueue& queue, const BaseModel& base, const std::string& directory);
Result<BaseModel> kept_base_model(aio::IoQueue& queue, const std::string& directory);
// The base stored in a run's directory (empty: no run). Otherwise the model that `weights` belong
// to, if they still exist; the run's configuration names them as its start.
Result<BaseModel> base_model_of_run(aio::IoQueue& queue, const std::string& directory,
                                    const std::string& weights);

}  // namespace sluice::engine
