// The engine's errors as Python exceptions: sluice.RefusedError for requests that cannot be
// fulfilled as made, sluice.Error for all others. The bindings' functions throw them.
#pragma once

#include <utility>

#include "aio/result.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

// The user's request cannot be fulfilled as it was made.
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
