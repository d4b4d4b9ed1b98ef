// WeightSource: reads tensors as fp32, range by range, from any kind of storage.
//
// Threads: one at a time.
// Errors:  name the file, and the tensor if any. kNotFound: there is no such tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // In the order in which reading them is one pass.
  virtual std::span<const TensorInfo> tensors() const = 0;
  virtual const TensorInfo* find(std::string_view name) const = 0;  // nullptr: no such tensor

  // Elements [first_element, first_element + values.size()) of a tensor, in row-major order.
  // kUnsupported unless the tensor is F16, BF16, F32, F64 or U8.
  virtual Status read(std::string_view name, std::uint64_t first_element,
                      std::span<float> values) = 0;
  // The same for initial weights; kCorrupt if a value is not finite: a run that begins with it
  // would stop at its first step, and blame its data.
  Status read_finite(std::string_view name, std::uint64_t first_element, std::span<float> values);

  // Where an existing tensor is stored, for error messages.
  virtual std::string place_of(std::string_view name) const = 0;
};

}  // namespace sluice::engine
