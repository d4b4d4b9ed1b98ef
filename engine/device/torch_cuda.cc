// LibTorch's part for CUDA, which registers thousands of operators when it is loaded: only where
// there is a driver, so that a program on a machine without one starts in half the time. Before
// main, since LibTorch asks once whether that part is there. In Python, `import torch` has loaded
// it already.
#include "engine/device/torch_cuda.h"

#include <dlfcn.h>

#include <cstdio>

namespace sluice::engine {

extern "C" [[gnu::constructor]] void sluice_load_torch_cuda() {
  // WSL's driver and those in containers are found like any other.
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return;
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL) != nullptr) return;
  // Before main, where nothing else can say it.
  std::fprintf(stderr,
               "sluice: no GPU can be used, since LibTorch's part for CUDA was not loaded: %s\n",
               dlerror());
}

void clear_cublas_workspaces() {
  // at::cuda::clearCublasWorkspaces(), the only one of its functions that is called here.
  void* const found = dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv");
  if (found != nullptr) reinterpret_cast<void (*)()>(found)();
}

}  // namespace sluice::engine
