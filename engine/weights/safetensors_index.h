// model.safetensors.index.json: which file of a sharded set holds which tensor.
//
//   {"metadata": {"total_size": 548105171}, "weight_map": {"wte.weight": "model-00001-of-...",
//   ...}}
//
// An index comes from a stranger as well: the files it names lie in its own folder, and have the
// names that such files have. What else it says is not looked at.
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

// As Hugging Face's libraries write it: keys sorted, two spaces.
std::string make_safetensors_index(const WeightMap& weights, std::uint64_t total_bytes);

// ("out/model.safetensors", 0, 3) -> "out/model-00001-of-00003.safetensors"; alone it keeps its
// name.
std::string shard_path(const std::string& path, std::size_t shard, std::size_t shards);

}  // namespace sluice::engine
