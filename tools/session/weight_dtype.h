// The element types that --dtype names.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/weights/dtype.h"

namespace sluice::tools {

inline constexpr const char* kWeightDTypes = "fp32|bf16|fp16";

inline Result<engine::DType> weight_dtype(const std::string& text) {
  if (text == "fp32") return engine::DType::kF32;
  if (text == "bf16") return engine::DType::kBF16;
  if (text == "fp16") return engine::DType::kF16;
  return Error(ErrorCode::kInvalidArgument,
               "--dtype is \"" + text + "\"; it must be fp32, bf16 or fp16");
}

inline const char* weight_dtype_name(engine::DType dtype) {
  return dtype == engine::DType::kBF16 ? "bf16" : dtype == engine::DType::kF16 ? "fp16" : "fp32";
}

}  // namespace sluice::tools
