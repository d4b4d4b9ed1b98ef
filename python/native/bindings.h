// Shared by the files of sluice._core: errors as exceptions, and the functions that define its
// parts. core_module.cc assembles the module.
//
// Threads: Python's. Calls that may wait release the GIL.
// Errors:  exceptions, with the engine's sentence.
#pragma once

#include <Python.h>
// The include above must come first.
#include <pybind11/pybind11.h>

#include "python/native/python_errors.h"
#include "python/native/start.h"

namespace sluice::engine {

using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;

void define_errors(pybind11::module_& module);
// Defines Config, Parameter, StepOutcome, Ranks and Run; Family and its passes.
void define_module_runs(pybind11::module_& module);
// Defines ParameterSpill, for sluice/_deferred_init.py.
void define_spill(pybind11::module_& module);

}  // namespace sluice::engine
