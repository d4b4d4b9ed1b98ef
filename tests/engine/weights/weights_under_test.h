// Shared by tests of weights: hand-made safetensors files, and values that are unique to their
// place.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/weights/safetensors_reader.h"
#include "engine/weights/safetensors_writer.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {

// A safetensors file with this header and data, valid or not.
inline std::string file_of(const std::string& json, const std::string& data) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return file + json + data;
}

inline void put_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string get_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Value i of tensor t: exact in fp16 and bf16, and different from its neighbours.
inline float value_at(std::uint64_t tensor, std::uint64_t element) {
  const auto number = static_cast<float>((element * 7 + tensor * 13) % 251);
  return (element % 2 == 0 ? number : -number) / 4;
}

inline std::vector<float> values_of(std::uint64_t tensor, std::uint64_t elements) {
  std::vector<float> values(elements);
  for (std::uint64_t i = 0; i < elements; ++i) values[i] = value_at(tensor, i);
  return values;
}

inline std::uint64_t elements_of(const TensorSpec& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t length : tensor.shape) elements *= length;
  return elements;
}

// Appends every tensor's values_of, `range` elements at a time, and finishes.
inline Status write_tensors(SafetensorsWriter& writer, const std::vector<TensorSpec>& tensors,
                            std::uint64_t range) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto values = values_of(t, elements_of(tensors[t]));
    for (std::uint64_t first = 0; first < values.size(); first += range) {
      const std::uint64_t count = std::min<std::uint64_t>(range, values.size() - first);
      SLUICE_RETURN_IF_ERROR(
          writer.append(tensors[t].name, std::span(values).subspan(first, count)));
    }
  }
  return writer.finish();
}

// Reads every tensor, `range` elements at a time, and compares it with values_of.
inline Status check_tensors(SafetensorsReader& reader, const std::vector<TensorSpec>& tensors,
                            std::uint64_t range) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t elements = elements_of(tensors[t]);
    std::vector<float> values(elements, -1e30F);
    for (std::uint64_t first = 0; first < elements; first += range) {
      const std::uint64_t count = std::min(range, elements - first);
      SLUICE_RETURN_IF_ERROR(
          reader.read(tensors[t].name, first, std::span(values).subspan(first, count)));
    }
    EXPECT_EQ(values, values_of(t, elements)) << tensors[t].name;
  }
  return {};
}

// Sizes around pages and staging halves, no elements, a single number; wider dtypes first.
inline std::vector<TensorSpec> test_tensors() {
  return {{"wide", DType::kF64, {37}},
          {"large", DType::kF32, {300, 257}},
          {"one", DType::kF32, {}},
          {"none", DType::kF32, {0, 5}},
          {"h.0.weight", DType::kBF16, {4095}},
          {"h.0.bias", DType::kF16, {3, 7, 11}},
          {"h.1.weight", DType::kBF16, {8193}},
          {"nothing at the end", DType::kF16, {0}}};
}

}  // namespace sluice::engine
