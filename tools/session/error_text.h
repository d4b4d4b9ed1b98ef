// error_of: converts an exception into an Error, at the boundary of code that throws.
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "aio/result.h"
#include "engine/step/train_error.h"

namespace sluice::tools {

// The message is one sentence without LibTorch's backtrace; kOutOfMemory if memory ran out.
inline Error error_of(const std::exception& thrown) {
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  if (dynamic_cast<const engine::TrainError*>(&thrown) != nullptr)
    return Error(ErrorCode::kInternal, thrown.what());
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr)
    return Error(ErrorCode::kOutOfMemory, "the host is out of memory");
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&thrown);
  if (of_torch == nullptr) return Error(ErrorCode::kInternal, first_line(thrown.what()));
  const bool is_memory = dynamic_cast<const c10::OutOfMemoryError*>(of_torch) != nullptr;
  return Error(is_memory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
               first_line(of_torch->what_without_backtrace()));
}

}  // namespace sluice::tools
