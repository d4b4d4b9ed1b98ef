// Families' models and their passes for Python: part of sluice._core.
#pragma once

// pybind11 wants Python's header first.
#include <Python.h>
//
#include <pybind11/pybind11.h>

#include "engine/module/family_model.h"

namespace sluice::engine {

void define_family(pybind11::module_& module);       // before Run, whose argument it is
void define_family_pass(pybind11::module_& module);  // behind it

}  // namespace sluice::engine
