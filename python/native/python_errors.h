// The engine's errors as those that Python gets: sluice.RefusedError for what the user asked for
// and cannot have so, sluice.Error for the rest. Thrown by what the bindings call.
#pragma once

#include <utility>

#include "aio/result.h"
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

}  // namespace sluice::engine
