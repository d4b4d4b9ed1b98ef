// The names of a checkpoint's folder and files. Only files with these names are ever removed.
//
//   step-000000012/                        has the suffix .new until it is complete
//     master-00001-of-00002.safetensors    exp_avg-..., exp_avg_sq-... have the same form;
//                                          several ranks: rank 0's shards, then rank 1's, ...
//     model.safetensors.index.json         of the masters, for other programs; one rank only
//     checkpoint.json                      the manifest: with it the checkpoint is complete
//     checkpoint.json.removed              the manifest during a removal
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "offload/state_slice.h"

namespace sluice::engine {

inline constexpr std::string_view kManifestName = "checkpoint.json";
inline constexpr std::string_view kWeightIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kRemovalMarkName = "checkpoint.json.removed";
inline constexpr std::string_view kReplacementSuffix = ".new";
inline constexpr std::string_view kCheckpointsFolder = "checkpoints";  // in a run's directory
inline constexpr std::string_view kSetAsidePrefix = "set-aside-at-";   // in the checkpoints folder

// (the master, 0, 2) -> "master-00001-of-00002.safetensors"
std::string shard_name(const offload::StateField& field, std::size_t shard, std::size_t shards);
struct ShardName {
  std::size_t field = 0;  // of offload::kStateFields
  std::size_t shard = 0;
  std::size_t shards = 0;

  friend bool operator==(const ShardName&, const ShardName&) = default;
};
std::optional<ShardName> parse_shard_name(std::string_view name);
// Whether it is the name of a file above, or of a temporary file that will be renamed to one.
bool is_checkpoint_file(std::string_view name);

std::string checkpoint_name(std::int64_t step);  // 12 -> "step-000000012"
struct FolderName {
  std::int64_t step = 0;
  bool replacement = false;  // ends in .new
};
std::optional<FolderName> parse_folder_name(std::string_view name);

// "a/b" -> "a"; "b" -> ".".
std::string parent_folder(const std::string& path);
std::string last_name(const std::string& path);  // "a/b" -> "b"

// The run's directory that contains a checkpoint's folder, also if the checkpoint was set aside.
// Empty if there is none.
//   run/checkpoints/step-000000012, run/checkpoints/set-aside-at-NAME/checkpoints/step-000000012
// A relative path stays relative, unless only the working directory's path shows which run it is.
std::string run_directory_of(const std::string& checkpoint);

}  // namespace sluice::engine
