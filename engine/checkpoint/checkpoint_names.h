// The names of a checkpoint's folder and files, and of nothing else: only what is ours is removed.
//
//   step-000000012/                        while it is written, until it takes its place: ....new
//     master-00001-of-00002.safetensors    exp_avg-..., exp_avg_sq-... likewise
//                                          of several ranks: rank 0's shards, then rank 1's, ...
//     model.safetensors.index.json         of the masters, for other programs; of one rank
//     checkpoint.json                      the manifest: with it the checkpoint is there
//     checkpoint.json.removed              the manifest of one that is being removed
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
inline constexpr std::string_view kCheckpointsFolder = "checkpoints";  // of a run's directory
inline constexpr std::string_view kSetAsidePrefix = "set-aside-at-";   // in that

// (the master, 0, 2) -> "master-00001-of-00002.safetensors"
std::string shard_name(const offload::StateField& field, std::size_t shard, std::size_t shards);
struct ShardName {
  std::size_t field = 0;  // of offload::kStateFields
  std::size_t shard = 0;
  std::size_t shards = 0;

  friend bool operator==(const ShardName&, const ShardName&) = default;
};
std::optional<ShardName> parse_shard_name(std::string_view name);
// Of any of the files above, or of one on its way to such a name.
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

// The run's directory that a checkpoint's folder lies in, even where the checkpoint was set aside;
// empty: it lies in none.
//   run/checkpoints/step-000000012, run/checkpoints/set-aside-at-NAME/checkpoints/step-000000012
// A relative path stays relative, unless only the working directory's path shows which run it is.
std::string run_directory_of(const std::string& checkpoint);

}  // namespace sluice::engine
