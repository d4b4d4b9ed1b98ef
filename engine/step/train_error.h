// Errors of the training loop and above are exceptions, because LibTorch throws too; below it,
// errors are values.
#pragma once

#include <stdexcept>
#include <utility>

#include "aio/result.h"

namespace sluice::engine {

class TrainError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A step's gradient is not finite, and the run does not skip the step. Resuming from the last
// checkpoint unchanged leads to the same step again; the message says so, and what helps.
class NonFiniteGradient : public TrainError {
  using TrainError::TrainError;
};

inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw TrainError(status.error().message());
}
template <typename T>
void throw_if_error(const Result<T>& result) {
  if (!result.ok()) throw TrainError(result.error().message());
}
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw TrainError(result.error().message());
  return std::move(result).value();
}

}  // namespace sluice::engine
