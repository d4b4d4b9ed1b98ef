// The functions of `sluice` for sluice._core: plans and probes, runs of configurations, the files
// in a Python run's folder, and weights.
//
// Threads: Python's. Calls that may wait release the GIL.
// Errors:  exceptions, with the command line's sentences, which name its options.
#pragma once

#include "engine/observe/step_metrics.h"
#include "python/native/bindings.h"
#include "tools/session/config_options.h"

namespace sluice::tools {

void define_plans(pybind11::module_& module);
void define_training(pybind11::module_& module);
void define_module_records(pybind11::module_& module);
void define_weights(pybind11::module_& module);

// A line of metrics.jsonl as a dict. It has every key, None for missing values, and nan for
// non-finite numbers.
pybind11::dict metrics_dict(const engine::StepMetrics& metrics);

// `file`: the path of a run file, or empty; `text`: its content instead.
ConfigOptions config_options(const std::string& file, const std::string& text,
                             const std::string& deepspeed,
                             const std::vector<std::string>& overrides);

}  // namespace sluice::tools
