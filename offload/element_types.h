// ElementType: the types of numbers that parameters in use, gradients and activations are made of,
// and the bytes of each. ParamForm: how a parameter is stored, with its 16-bit form if it has one.
//
// Plain data (CUDA code includes this file).
#pragma once

#include <cstdint>

namespace sluice::offload {

enum class ElementType : std::uint8_t { kFp32, kBf16, kFp16 };

constexpr std::uint64_t element_bytes(ElementType type) {
  return type == ElementType::kFp32 ? 4 : 2;
}

// The type of gradients, as the optimizer reads them.
using GradType = ElementType;

enum class ParamForm : std::uint8_t {
  kSplit,        // bf16 mode: param16 = hi, lo; see split_master.h
  kFp32,         // fp32 mode: master alone
  kFp32AndFp16,  // fp16 mode: master, and an fp16 copy out in param16, ties to even
};

// Of the parameters that a pass uses, and of its activations.
constexpr ElementType compute_type(ParamForm form) {
  switch (form) {
    case ParamForm::kSplit:
      return ElementType::kBf16;
    case ParamForm::kFp32AndFp16:
      return ElementType::kFp16;
    case ParamForm::kFp32:
      break;
  }
  return ElementType::kFp32;
}

constexpr int param_bytes_per_element(ParamForm form) {
  return static_cast<int>(element_bytes(compute_type(form)));
}

}  // namespace sluice::offload
