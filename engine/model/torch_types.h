// LibTorch's type for an ElementType.
#pragma once

#include <ATen/core/ScalarType.h>

#include "offload/element_types.h"

namespace sluice::engine {

constexpr at::ScalarType scalar_type(offload::ElementType type) {
  switch (type) {
    case offload::ElementType::kBf16:
      return at::kBFloat16;
    case offload::ElementType::kFp16:
      return at::kHalf;
    case offload::ElementType::kFp32:
      break;
  }
  return at::kFloat;
}

}  // namespace sluice::engine
