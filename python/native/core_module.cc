// sluice._core: the engine for Python. Only the package's own files (python/sluice/) use it.
//
// Calls that may wait release the GIL. Errors are sluice.Error, with the engine's sentence.
#include "python/native/bindings.h"
// The include above must come first.
#include <torch/version.h>

#include "python/native/tool_bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Sluice's engine, for the package sluice";
  module.attr("torch_version") = TORCH_VERSION;
  module.attr("version") = SLUICE_VERSION;
  sluice::engine::define_errors(module);
  sluice::engine::define_module_runs(module);
  sluice::tools::define_plans(module);
  sluice::tools::define_training(module);
  sluice::tools::define_module_records(module);
  sluice::tools::define_weights(module);
}
