// cuda_kernels.h in a build without CUDA.
#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {
namespace {

[[noreturn]] void no_kernels() {
  TORCH_CHECK(false,
              "this build of Sluice has no CUDA code: install the CUDA toolkit (nvcc) and run "
              "tools/setup --cuda=on, or train on the CPU");
}

}  // namespace

void cuda_dropout(const at::Tensor& /*from*/, at::Tensor& /*to*/, const DropoutMask& /*mask*/) {
  no_kernels();
}

void cuda_cross_entropy(at::Tensor& /*logits*/, const at::Tensor& /*targets*/,
                        at::Tensor& /*losses*/, const CrossEntropyOptions& /*options*/) {
  no_kernels();
}

bool cuda_scans(const DeltaScan& /*scan*/) { return false; }

void cuda_scan(const DeltaScan& /*scan*/, const at::Tensor& /*state*/,
               const DeltaScanned& /*made*/) {
  no_kernels();
}

void cuda_scan_back(const DeltaScan& /*scan*/, const at::Tensor& /*gradient*/,
                    const at::Tensor& /*states*/, const at::Tensor& /*written*/) {
  no_kernels();
}

bool cuda_inverts(const at::Tensor& /*lower*/) { return false; }
at::Tensor cuda_unit_inverse(const at::Tensor& /*lower*/) { no_kernels(); }

void cuda_cast_to_fp8(const at::Tensor& /*from*/, const at::Tensor& /*scale*/,
                      const at::Tensor& /*by_rows*/, const at::Tensor& /*by_columns*/) {
  no_kernels();
}

int cuda_major(at::Device /*device*/) { no_kernels(); }
int cuda_minor(at::Device /*device*/) { no_kernels(); }

}  // namespace sluice::engine
