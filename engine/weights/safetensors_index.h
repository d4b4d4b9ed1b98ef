// model.safetensors.index.json: maps the tensors of a sharded set to its files.
//
//   {"metadata": {"total_size": 548105171}, "weight_map": {"wte.weight": "model-00001-of-...",
//   ...}}
//
// An index is untrusted too: the files that it names must be in its own folder, and have the names
// of such files. Other keys are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

inline constexpr std::size_t kMaxShards = 10'000;
inline constexpr std::size_t kMaxTensorsOfIndex = 1 << 22;

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name

// kCorrupt: a sentence without the index's name, for any bytes.
Result<WeightMap> parse_safetensors_index(std::string_view json);

// In the format of Hugging Face's libraries: sorted keys, an indent of two spaces.
std::string make_safetensors_index(const WeightMap& weights, std::uint64_t total_bytes);

// ("out/model.safetensors", 0, 3) -> "out/model-00001-of-00003.safetensors"; a single shard keeps
// the name.
std::string shard_path(const std::string& path, std::size_t shard, std::size_t shards);

}  // namespace sluice::engine
