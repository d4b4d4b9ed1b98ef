// The models of families and their passes for Python: part of sluice._core.
#pragma once

// pybind11 requires Python's header first.
#include <Python.h>
//
#include <pybind11/pybind11.h>

#include "engine/module/family_model.h"

namespace sluice::engine {

void define_family(pybind11::module_& module);       // before Run, which takes it as an argument
void define_family_pass(pybind11::module_& module);  // after Run

}  // namespace sluice::engine
