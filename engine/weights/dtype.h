// The element types of a safetensors file, and conversions between fp32 and the types of weights.
//
// Rounding is to nearest, ties to even. Overflow gives an infinity, denormals are kept. fp32 to
// fp32 keeps every bit; other conversions turn a NaN into the canonical NaN of the type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace sluice::engine {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

std::string_view to_string(DType dtype);  // as in files, for example "BF16"
std::optional<DType> parse_dtype(std::string_view text);
std::uint64_t element_bytes(DType dtype);

// Whether the functions below support it: F16, BF16, F32 and F64.
bool is_weight_dtype(DType dtype);

// `bytes` has values.size() elements of a weight dtype, at any address. to_floats() also takes U8.
void to_floats(DType dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes);

}  // namespace sluice::engine
