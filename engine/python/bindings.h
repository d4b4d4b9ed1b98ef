// What the files of sluice._core share: errors as exceptions, and a configuration as Python has it.
// The module itself is put together in tools/python/, which has the parts that are `sluice`'s, too.
//
// Threads: those of Python. What may wait gives up the GIL. Errors: exceptions, with the engine's
// sentence.
#pragma once

#include <Python.h>
// The above has to come first.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/python/module_layout.h"
#include "engine/python/python_errors.h"

namespace sluice::engine {

// Of a module that is trained, as JSON text of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys, and why
  config::Resolved resolved;                                 // as the text has it
  std::string given_run_dir;                                 // empty: nobody named one
  std::int64_t steps_per_print = 0;                          // likewise
  bool has_threads = false;                                  // run.cpu_threads was given
  bool asks_length = false;  // data.sequence_length, which the units of a family are planned for
};

using PythonUnit = std::pair<std::string, std::vector<ModuleParameter>>;
ModuleLayout layout_of(const std::vector<PythonUnit>& described);

using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;

void define_errors(pybind11::module_& module);
// Config, Parameter, StepOutcome, Ranks and Run; Family and its passes.
void define_module_runs(pybind11::module_& module);
// ParameterSpill, for sluice/making.py.
void define_spill(pybind11::module_& module);

}  // namespace sluice::engine
