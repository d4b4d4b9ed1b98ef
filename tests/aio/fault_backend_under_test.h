// A simulated drive behind a fault backend, with a file on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/units.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {

inline FaultRule once(FaultKind fault, std::uint64_t nth = 1) {
  return {.fault = fault, .nth = nth};
}
inline FaultRule always(FaultKind fault) { return {.fault = fault, .persistent = true}; }

// A file of 64 KiB of ones, opened through the fault backend.
class FaultBackendTest : public testing::Test {
 protected:
  FaultBackendTest() {
    EXPECT_EQ(write_at(backend_, *file_, 0, filled(64 * kKiB, 1)), 64 * kKiB);
    backend_.set_plan({});
  }
  void plan(FaultRule rule) { backend_.set_plan(FaultPlan::of(std::move(rule))); }
  std::int64_t write(std::uint64_t offset, std::size_t length, int value) {
    return write_at(backend_, *file_, offset, filled(length, value));
  }
  std::vector<std::byte> content() { return *drive_.content("/f", SimDrive::View::kPresent); }
  std::vector<std::byte> untouched() { return filled(64 * kKiB, 1); }

  VirtualLoop loop_;
  SimDrive drive_{loop_, {}};
  FaultBackend backend_{drive_, {}};
  std::unique_ptr<File> file_ = open_file(backend_, "/f");
};

}  // namespace sluice::aio
