// WeightSource: tensors as fp32, range by range, wherever they lie.
//
// Threads: one at a time.
// Errors:  name the file, and for a tensor the tensor. kNotFound: there is no such tensor.
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
  virtual const TensorInfo* find(std::string_view name) const = 0;  // nullptr: there is none

  // Elements [first_element, first_element + values.size()) of a tensor, row by row. kUnsupported
  // for a tensor that is no F16, BF16, F32 or F64.
  virtual Status read(std::string_view name, std::uint64_t first_element,
                      std::span<float> values) = 0;
  // Likewise of weights to begin with; kCorrupt where one is not finite: a run that began with it
  // would stop at its first step, and blame its data.
  Status read_finite(std::string_view name, std::uint64_t first_element, std::span<float> values);

 private:
  // Where a tensor that is there lies, for an error.
  virtual std::string place_of(std::string_view name) const = 0;
};

}  // namespace sluice::engine
