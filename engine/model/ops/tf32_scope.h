// Tf32Scope: lets fp32 products on CUDA that are called in its scope round their factors to TF32.
// ATen has one setting for the whole process, so only one thread may compute on CUDA.
#pragma once

#include <ATen/Context.h>

namespace sluice::engine {

class Tf32Scope {
 public:
  explicit Tf32Scope(bool wanted) : sets_(wanted && !at::globalContext().allowTF32CuBLAS()) {
    if (sets_) at::globalContext().setAllowTF32CuBLAS(true);
  }
  ~Tf32Scope() {
    if (sets_) at::globalContext().setAllowTF32CuBLAS(false);
  }
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  bool sets_;
};

}  // namespace sluice::engine
