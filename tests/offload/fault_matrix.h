// Runs a life in which each transfer fails in turn, once and for good.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "tests/sanitized.h"

namespace sluice::offload {

// Every how many operations one fails.
inline constexpr std::uint64_t kFaultStrideSimulated = sweep_stride(7);
inline constexpr std::uint64_t kFaultStrideReal = 17;

struct FaultLife {
  bool met = false;     // the planned fault happened
  bool failed = false;  // the life ended in an error
};

// Repeats the life with the fault one stride later, until the fault no longer happens. Returns how
// many lives ended in an error.
inline int run_fault_matrix(
    const char* what, std::string_view backend, std::uint64_t stride,
    const std::function<FaultLife(const aio::FaultPlan& plan, bool persistent)>& live) {
  using aio::FaultKind;
  int runs = 0;
  int errors = 0;
  log::set_sink([](log::Level, std::string_view) {});  // warnings about retries
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kShort, FaultKind::kTornWrite}) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += stride) {
        SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(nth) +
                     (persistent ? " and from there on" : ""));
        const FaultLife life = live(aio::FaultPlan::of({.fault = fault,
                                                        .nth = nth,
                                                        .persistent = persistent,
                                                        .path_contains = "/records"}),
                                    persistent);
        ++runs;
        errors += life.failed ? 1 : 0;
        if (!life.met || testing::Test::HasFailure()) break;
      }
    }
  }
  log::set_sink({});
  std::cout << what << " (" << backend << "): " << runs << " runs, " << errors
            << " ended in an error, 0 hung\n";
  return errors;
}

}  // namespace sluice::offload
