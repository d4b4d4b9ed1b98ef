// What the files of the extension module share: its errors, and the configuration as Python has it.
#pragma once

#include <Python.h>
// The above has to come first.
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

// What the user asked for cannot be had, as it was asked for.
class RefusedError : public TrainError {
  using TrainError::TrainError;
};

inline void must_be(const Status& status) {
  if (status.ok()) return;
  if (status.error().code() == ErrorCode::kInvalidArgument ||
      status.error().code() == ErrorCode::kUnsupported)
    throw RefusedError(status.error().message());
  throw TrainError(status.error().message());
}
template <typename T>
T value_of(Result<T> result) {
  must_be(result.ok() ? Status() : Status(result.error()));
  return std::move(result).value();
}

// A configuration as Python has it: JSON text, of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys, and why
  bool has_threads = false;                                  // run.cpu_threads was given
};

// ParameterSpill, for sluice/making.py.
void define_spill(pybind11::module_& module);

}  // namespace sluice::engine
