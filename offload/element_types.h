// ElementType: the types of numbers that parameters in use, gradients and activations are made of,
// and the bytes of each. ParamForm: how a parameter is stored, with its 16-bit form if it has one.
// StateForm: how all that AdamW keeps of a parameter is stored.
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

struct StateForm {
  ParamForm param = ParamForm::kSplit;
  ElementType moments = ElementType::kFp32;  // of m and v: kFp32, or kBf16 (moment_rounding.h)
};

// Of lo or the master, as far as it is state; 0: the parameter itself is the master.
constexpr std::uint64_t master_bytes_per_element(ParamForm form) {
  return form == ParamForm::kSplit ? 2 : form == ParamForm::kFp32 ? 0 : 4;
}

// Of the state of one parameter, besides the parameter itself.
constexpr int state_bytes_per_element(StateForm form) {
  return static_cast<int>(master_bytes_per_element(form.param) + 2 * element_bytes(form.moments));
}

}  // namespace sluice::offload
