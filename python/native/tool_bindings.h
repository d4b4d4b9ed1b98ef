// What `sluice` has as well, for sluice._core: plans and probes, runs of configurations, what a run
// from Python keeps in its folder, and weights.
//
// Threads: those of Python. What may wait gives up the GIL.
// Errors:  exceptions, with the sentences of the command line, whose options they name as it does.
#pragma once

#include "engine/observe/step_metrics.h"
#include "python/native/bindings.h"
#include "tools/session/config_options.h"

namespace sluice::tools {

void define_plans(pybind11::module_& module);
void define_training(pybind11::module_& module);
void define_module_records(pybind11::module_& module);
void define_weights(pybind11::module_& module);

// A line of metrics.jsonl as a dict: every key always, None where there is nothing; a number that
// is not finite is nan.
pybind11::dict metrics_dict(const engine::StepMetrics& metrics);

// `file`: of a run file, or empty; `text`: its content instead.
ConfigOptions config_options(const std::string& file, const std::string& text,
                             const std::string& deepspeed,
                             const std::vector<std::string>& overrides);

}  // namespace sluice::tools
