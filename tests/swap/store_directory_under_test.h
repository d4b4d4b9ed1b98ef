// Folders of stores on real files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "aio/sim_drive.h"
#include "swap/store_directory.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::swap {

using aio::BackendKind;
using aio::IoQueue;
using aio::make_backend_or_die;
using aio::make_queue_or_die;
using aio::PowerLoss;

constexpr PowerLoss kAllPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny,
                                      PowerLoss::kDropUnsynced, PowerLoss::kKeepAll,
                                      PowerLoss::kTearLast};

// Never waits for a lock, and has fixed values for time and place.
inline RunOptions impatient(std::int64_t pid = 7) {
  return {.self = {.pid = pid, .host = "here", .started_utc = "2026-01-02T03:04:05Z"},
          .lock_wait_ms = 0,
          .locks_reach_all = [](const std::string&) { return true; },
          .device = [](const std::string&) { return std::uint64_t{0}; }};
}

class StoreDirectoryOnFiles : public testing::Test {
 protected:
  Result<std::unique_ptr<StoreDirectory>> take(const std::string& run,
                                               const RunOptions& options = impatient()) {
    return StoreDirectory::take(*queue_, folder_.path(), run, options);
  }
  std::vector<FoundRun> runs() {
    auto found = find_runs(*queue_, folder_.path(), impatient());
    EXPECT_OK(found);
    return found.ok() ? std::move(*found) : std::vector<FoundRun>();
  }
  void write(const std::string& name, const std::string& content) const {
    const std::string path = folder_.file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << content;
  }
  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ = make_backend_or_die(BackendKind::kPosix);
  const std::unique_ptr<IoQueue> queue_ = make_queue_or_die(*backend_, {});
};

}  // namespace sluice::swap
