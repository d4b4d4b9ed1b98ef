// What the files of the extension module share: its errors, and the configuration as Python has it.
#pragma once

#include <Python.h>
// The above has to come first.
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "engine/python/python_errors.h"

namespace sluice::engine {

// A configuration as Python has it: JSON text, of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys, and why
  bool has_threads = false;                                  // run.cpu_threads was given
  bool asks_length = false;  // data.sequence_length, which the units of a family are planned for
};

// ParameterSpill, for sluice/making.py.
void define_spill(pybind11::module_& module);

}  // namespace sluice::engine
