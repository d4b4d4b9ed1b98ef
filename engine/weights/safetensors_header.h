// The header of a safetensors file: its tensors and their offsets.
//
//   8 bytes: length of the JSON, little endian | JSON, padded with spaces | the tensors' bytes
//
// Headers are untrusted. What parse_safetensors_json() accepts is consistent: names are unique,
// sizes match dtype and shape, and the tensors fill the file without gap or overlap.
//
// Errors: kCorrupt, a sentence without the file's name, for any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

inline constexpr std::uint64_t kHeaderPrefixBytes = 8;
inline constexpr std::uint64_t kMaxHeaderJsonBytes =
    100'000'000;  // the limit of the format's own library
inline constexpr std::size_t kMaxTensorsOfFile = 1 << 20;
inline constexpr std::size_t kMaxRank = 64;

// A tensor to be stored.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;  // empty: a scalar

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A tensor in a file.
struct TensorInfo : TensorSpec {
  std::uint64_t elements = 0;
  std::uint64_t begin_bytes = 0;  // after the header
  std::uint64_t size_bytes = 0;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  Metadata metadata;
};

// Length of the JSON, from the file's first 8 bytes.
Result<std::uint64_t> safetensors_json_bytes(std::span<const std::byte, kHeaderPrefixBytes> prefix,
                                             std::uint64_t file_bytes);
Result<SafetensorsHeader> parse_safetensors_json(std::string_view json, std::uint64_t data_bytes);

// Assigns offsets to the tensors of a file, in the given order. kInvalidArgument for tensors that
// could not be read back. Also for an order in which a tensor would not begin at a multiple of its
// element size: declare wider dtypes first.
Result<std::vector<TensorInfo>> lay_out(std::span<const TensorSpec> tensors);

// Prefix and JSON of such a file. The size is a multiple of 8 bytes; equal arguments give equal
// text.
std::string make_safetensors_header(std::span<const TensorInfo> tensors, const Metadata& metadata);

// For example "[768, 2304]".
std::string shape_text(std::span<const std::uint64_t> shape);

}  // namespace sluice::engine
