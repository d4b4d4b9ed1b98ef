// ElementType: the number types of compute parameters, gradients and activations, with their sizes
// in bytes. ParamForm: how a parameter is stored, with its 16-bit form if it has one. StateForm:
// how all of a parameter's AdamW state is stored.
//
// Plain data (CUDA code includes this file).
#pragma once

#include <cstdint>

namespace sluice::offload {

enum class ElementType : std::uint8_t { kFp32, kBf16, kFp16 };

constexpr std::uint64_t element_bytes(ElementType type) {
  return type == ElementType::kFp32 ? 4 : 2;
}

// The type of the gradients that the optimizer reads.
using GradType = ElementType;

enum class ParamForm : std::uint8_t {
  kSplit,        // bf16 mode: param16 = hi, lo; see split_master.h
  kFp32,         // fp32 mode: only the master
  kFp32AndFp16,  // fp16 mode: master, and an fp16 copy in param16, rounded to nearest even
};

// The type of the parameters that a pass uses, and of its activations.
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

struct StateForm {
  ParamForm param = ParamForm::kSplit;
  ElementType moments = ElementType::kFp32;  // m and v: kFp32, or kBf16 (moment_rounding.h)
};

// The bytes of lo or of the master that count as state; 0: the parameter itself is the master.
constexpr std::uint64_t master_bytes_per_element(ParamForm form) {
  return form == ParamForm::kSplit ? 2 : form == ParamForm::kFp32 ? 0 : 4;
}

// Bytes of state per parameter, without the parameter itself.
constexpr int state_bytes_per_element(StateForm form) {
  return static_cast<int>(master_bytes_per_element(form.param) + 2 * element_bytes(form.moments));
}

}  // namespace sluice::offload
