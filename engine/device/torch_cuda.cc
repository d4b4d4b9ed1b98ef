// Loads LibTorch's CUDA library only if there is a driver. It registers thousands of operators, so
// a program on a machine without a GPU starts in half the time. It must run before main, because
// LibTorch checks once whether the library is loaded. In Python, `import torch` has loaded it
// already.
#include "engine/device/torch_cuda.h"

#include <dlfcn.h>

#include <cstdio>

namespace sluice::engine {

extern "C" [[gnu::constructor]] void sluice_load_torch_cuda() {
  // This also finds the drivers of WSL and of containers.
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return;
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL) != nullptr) return;
  // main has not begun, so no other code can report this.
  std::fprintf(
      stderr,
      "sluice: no GPU can be used, because LibTorch's CUDA libraries were not loaded: %s; sluice "
      "doctor says more\n",
      dlerror());
}

void clear_cublas_workspaces() {
  // at::cuda::clearCublasWorkspaces(), the only function of the library that is called here.
  void* const found = dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv");
  if (found != nullptr) reinterpret_cast<void (*)()>(found)();
}

}  // namespace sluice::engine
