#include "engine/model/model_unit.h"

namespace sluice::engine {

std::uint64_t Saved::bytes() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.defined()) sum += tensor.nbytes();
  }
  return sum;
}

}  // namespace sluice::engine
