// A simulated drive that loses its power.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "aio/sim_drive.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {

constexpr std::size_t kSector = 512;
constexpr PowerLoss kAllPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny,
                                      PowerLoss::kDropUnsynced, PowerLoss::kKeepAll,
                                      PowerLoss::kTearLast};
constexpr PowerLoss kRandomPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny};

inline std::string name_of(PowerLoss policy) {
  constexpr const char* kNames[] = {"ordered", "any", "drop unsynced", "keep all", "tear last"};
  return kNames[static_cast<int>(policy)];
}

class SimDrivePower : public testing::Test {
 protected:
  std::unique_ptr<File> durable_file(const std::string& path, std::size_t size_bytes, int fill) {
    auto file = open_file(drive_, path);
    EXPECT_EQ(write_at(drive_, *file, 0, filled(size_bytes, fill)),
              static_cast<std::int64_t>(size_bytes));
    EXPECT_EQ(sync_file(drive_, *file), 0);
    EXPECT_OK(drive_.files().sync_directory("/"));
    return file;
  }
  void lose(PowerLoss policy, std::uint64_t seed = 1) {
    drive_.power_loss(policy, seed);
    loop_.run();
    drive_.restore_power();
  }
  // Removes a file that the loop has checked, so that the next power loss need not handle it.
  void forget(const std::string& path) {
    EXPECT_OK(drive_.files().remove(path));
    const std::size_t folder_length = std::max<std::size_t>(1, path.rfind('/'));
    EXPECT_OK(drive_.files().sync_directory(path.substr(0, folder_length)));
  }
  std::vector<std::byte> present(const std::string& path) {
    const auto bytes = drive_.content(path, SimDrive::View::kPresent);
    return bytes ? *bytes : std::vector<std::byte>();
  }

  VirtualLoop loop_;
  SimDrive drive_{loop_, {}};
};

}  // namespace sluice::aio
