#include "engine/weights/dtype.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "aio/check.h"
#include "offload/adamw/half.h"

namespace sluice::engine {
namespace {

struct Named {
  DType dtype;
  std::string_view name;
  std::uint64_t bytes;
};

// In the order of the enumerators.
constexpr std::array<Named, 15> kDTypes = {{{DType::kBool, "BOOL", 1},
                                            {DType::kU8, "U8", 1},
                                            {DType::kI8, "I8", 1},
                                            {DType::kF8E5M2, "F8_E5M2", 1},
                                            {DType::kF8E4M3, "F8_E4M3", 1},
                                            {DType::kI16, "I16", 2},
                                            {DType::kU16, "U16", 2},
                                            {DType::kF16, "F16", 2},
                                            {DType::kBF16, "BF16", 2},
                                            {DType::kI32, "I32", 4},
                                            {DType::kU32, "U32", 4},
                                            {DType::kF32, "F32", 4},
                                            {DType::kI64, "I64", 8},
                                            {DType::kU64, "U64", 8},
                                            {DType::kF64, "F64", 8}}};

const Named& entry(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

template <typename Stored, typename Convert>
void load(std::span<const std::byte> bytes, std::span<float> values, Convert convert) {
  SLUICE_CHECK(bytes.size() == values.size() * sizeof(Stored), "bytes that are not the values'");
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    values[i] = convert(stored);
  }
}

template <typename Stored, typename Convert>
void store(std::span<const float> values, std::span<std::byte> bytes, Convert convert) {
  SLUICE_CHECK(bytes.size() == values.size() * sizeof(Stored), "bytes that are not the values'");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
  }
}

float float_from_double(double value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value);
}

double double_from_float(float value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : double{value};
}

}  // namespace

std::string_view to_string(DType dtype) { return entry(dtype).name; }
std::uint64_t element_bytes(DType dtype) { return entry(dtype).bytes; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const Named& named : kDTypes) {
    if (named.name == text) return named.dtype;
  }
  return std::nullopt;
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

void to_floats(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  if (dtype == DType::kU8)
    return load<std::uint8_t>(bytes, values,
                              [](std::uint8_t value) { return static_cast<float>(value); });
  SLUICE_CHECK(is_weight_dtype(dtype), "no dtype of weights");
  if (dtype == DType::kF16) return load<std::uint16_t>(bytes, values, offload::float_from_fp16);
  if (dtype == DType::kF64) return load<double>(bytes, values, float_from_double);
  if (dtype == DType::kF32) return load<float>(bytes, values, [](float value) { return value; });
  load<std::uint16_t>(bytes, values, [](std::uint16_t half) {
    const float value = offload::float_from_bf16(half);
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
  });
}

void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes) {
  SLUICE_CHECK(is_weight_dtype(dtype), "no dtype of weights");
  if (dtype == DType::kF16) return store<std::uint16_t>(values, bytes, offload::fp16_from_float);
  if (dtype == DType::kF64) return store<double>(values, bytes, double_from_float);
  if (dtype == DType::kF32) return store<float>(values, bytes, [](float value) { return value; });
  store<std::uint16_t>(values, bytes, offload::bf16_from_float);
}

}  // namespace sluice::engine
