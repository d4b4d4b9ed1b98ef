// Power loss on the simulated drive: data and sizes. Each policy is compared with an oracle that is
// independent of the drive's journal.
#include "tests/aio/sim_drive_power.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>

#include "aio/sim_drive.h"
#include "aio/units.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;

// ---- exact policies ---------------------------------------------------------------------------

TEST_F(SimDrivePower, DropUnsyncedLeavesWhatTheLastSyncCovered) {
  auto file = durable_file("/f", 8192, 1);
  ASSERT_EQ(write_at(drive_, *file, 0, filled(4096, 2)), 4096);
  ASSERT_EQ(sync_file(drive_, *file), 0);
  ASSERT_EQ(write_at(drive_, *file, 4096, filled(8192, 3)), 8192);
  ASSERT_OK(file->allocate(64 * kKiB));
  EXPECT_EQ(drive_.unsynced_bytes(), 8192U);
  const auto expected = runs({{4096, 2}, {4096, 1}});
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kDurable), expected);
  EXPECT_EQ(present("/f").size(), 64 * kKiB);
  lose(PowerLoss::kDropUnsynced);
  EXPECT_EQ(present("/f"), expected);
  EXPECT_EQ(drive_.used_bytes(), 8192U);
  EXPECT_EQ(drive_.unsynced_bytes(), 0U);
}

TEST_F(SimDrivePower, KeepAllLeavesEverythingInFlightWritesIncluded) {
  auto file = durable_file("/f", 8192, 1);
  auto other = open_file(drive_, "/g");
  ASSERT_EQ(write_at(drive_, *other, 0, filled(4096, 5)), 4096);
  const AlignedBytes data(filled(4096, 6));
  TestOp write(IoKind::kWrite, file.get(), 4096, data.data(), 4096);
  write.submit(drive_);
  lose(PowerLoss::kKeepAll);
  EXPECT_EQ(write.result, -EIO);
  EXPECT_EQ(present("/f"), runs({{4096, 1}, {4096, 6}}));
  EXPECT_EQ(present("/g"), filled(4096, 5));
}

TEST_F(SimDrivePower, TearLastTearsTheNewestWriteAndOnlyThat) {
  std::set<std::string> forms;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::string path = "/f" + std::to_string(seed);
    auto file = durable_file(path, 16 * kSector, 1);
    ASSERT_EQ(write_at(drive_, *file, 0, filled(16 * kSector, 2)), 16 * kSector);
    ASSERT_EQ(write_at(drive_, *file, 0, filled(8 * kSector, 3)), 8 * kSector);
    lose(PowerLoss::kTearLast, seed);
    const auto bytes = present(path);
    std::string form;
    for (std::size_t sector = 0; sector < 16; ++sector) {
      const int value = static_cast<int>(bytes[sector * kSector]);
      ASSERT_TRUE(
          same_bytes(std::span(bytes).subspan(sector * kSector, kSector), filled(kSector, value)))
          << "a sector is whole";
      if (sector < 8) {
        ASSERT_TRUE(value == 2 || value == 3);
        form += value == 3 ? 'X' : '.';
      } else {
        ASSERT_EQ(value, 2);
      }
    }
    EXPECT_NE(form, "........");
    EXPECT_NE(form, "XXXXXXXX");
    forms.insert(form);
    forget(path);
  }
  EXPECT_TRUE(forms.contains("X.......")) << "a prefix";
  EXPECT_TRUE(forms.contains(".......X")) << "a suffix";
  EXPECT_GT(forms.size(), 30U) << "and other parts";
}

// ---- what a sync covers -----------------------------------------------------------------------

TEST_F(SimDrivePower, SyncCoversOnlyWritesThatCompletedBeforeItWasSubmitted) {
  SimDrive::Options options;
  options.depth = 8;
  options.write_latency_us = 100;
  options.sync_us = 1000;
  SimDrive drive(loop_, options);
  auto file = open_file(drive, "/f");
  ASSERT_EQ(write_at(drive, *file, 0, filled(3 * 4096, 1)), 3 * 4096);
  ASSERT_EQ(sync_file(drive, *file), 0);
  ASSERT_OK(drive.files().sync_directory("/"));
  ASSERT_EQ(write_at(drive, *file, 0, filled(4096, 2)), 4096);
  const AlignedBytes data(filled(4096, 3));
  TestOp during(IoKind::kWrite, file.get(), 4096, data.data(), 4096);
  TestOp sync(IoKind::kSync, file.get());
  TestOp after(IoKind::kWrite, file.get(), 2 * 4096, data.data(), 4096);
  during.submit(drive);
  sync.submit(drive);
  after.submit(drive);
  loop_.run();
  ASSERT_EQ(sync.result, 0);
  ASSERT_LT(during.done_ns, sync.done_ns);  // they completed first, and are not covered
  ASSERT_LT(after.done_ns, sync.done_ns);
  drive.power_loss(PowerLoss::kDropUnsynced, 1);
  drive.restore_power();
  const auto bytes = drive.content("/f", SimDrive::View::kPresent);
  EXPECT_EQ(bytes, runs({{4096, 2}, {8192, 1}}));
}

TEST_F(SimDrivePower, ASyncThatWasCutOffPromisesNothing) {
  auto file = durable_file("/f", 4096, 1);
  ASSERT_EQ(write_at(drive_, *file, 0, filled(4096, 2)), 4096);
  TestOp sync(IoKind::kSync, file.get());
  sync.submit(drive_);
  lose(PowerLoss::kDropUnsynced);
  EXPECT_EQ(sync.result, -EIO);
  EXPECT_EQ(present("/f"), filled(4096, 1));
}

TEST_F(SimDrivePower, OldestWritesBecomeDurableWhenTheCacheIsFull) {
  SimDrive::Options options;
  options.write_cache_bytes = 8192;
  SimDrive drive(loop_, options);
  auto file = open_file(drive, "/f");
  ASSERT_OK(file->allocate(5 * 4096));
  ASSERT_OK(drive.files().sync_directory("/"));
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(write_at(drive, *file, i * 4096, filled(4096, static_cast<int>(i) + 1)), 4096);
  }
  EXPECT_EQ(drive.unsynced_bytes(), 8192U);
  drive.power_loss(PowerLoss::kDropUnsynced, 1);
  drive.restore_power();
  const auto bytes = *drive.content("/f", SimDrive::View::kPresent);
  ASSERT_EQ(bytes.size(), 5 * 4096U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(static_cast<std::size_t>(bytes[i * 4096]), i < 3 ? i + 1 : 0) << i;
  }
}

// ---- random data against an oracle ------------------------------------------------------------

// For each 512-byte sector the oracle has the version of the last sync and every version written
// since. After the loss the sector must be one of them, whole.
TEST_F(SimDrivePower, EverySectorIsAVersionThatMaySurviveAndSyncedOnesNeverAreLost) {
  constexpr std::size_t kSectors = 64;
  int kept_newest = 0;
  int went_back = 0;
  int old_over_new = 0;  // neither the newest nor the synced one
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 1; seed <= 120; ++seed) {
      SCOPED_TRACE(name_of(policy) + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      VirtualLoop loop;
      SimDrive drive(loop, {});
      auto file = open_file(drive, "/f", false);
      ASSERT_EQ(write_at(drive, *file, 0, filled(kSectors * kSector, 1)), kSectors * kSector);
      ASSERT_EQ(sync_file(drive, *file), 0);
      ASSERT_OK(drive.files().sync_directory("/"));
      std::vector<std::vector<int>> versions(kSectors, {1});  // the first is the synced one
      int version = 1;
      std::deque<AlignedBytes> buffers;
      std::deque<TestOp> in_flight;
      for (int i = 0; i < 40; ++i) {
        if (i < 36 && random() % 10 == 0) {
          ASSERT_EQ(sync_file(drive, *file), 0);
          for (auto& sector : versions) sector = {sector.back()};
          continue;
        }
        const std::size_t first = random() % kSectors;
        const std::size_t count = 1 + random() % std::min<std::size_t>(12, kSectors - first);
        ++version;
        for (std::size_t s = first; s < first + count; ++s) versions[s].push_back(version);
        const auto data = filled(count * kSector, version);
        if (i >= 36) {  // the last ones are still in flight
          const AlignedBytes& buffer = buffers.emplace_back(data);
          in_flight.emplace_back(IoKind::kWrite, file.get(), first * kSector, buffer.data(),
                                 buffer.size());
          in_flight.back().submit(drive);
        } else {
          ASSERT_EQ(write_at(drive, *file, first * kSector, data), count * kSector);
        }
      }
      drive.power_loss(policy, seed);
      loop.run();
      for (const TestOp& op : in_flight) EXPECT_EQ(op.result, -EIO);
      drive.restore_power();
      const auto bytes = *drive.content("/f", SimDrive::View::kPresent);
      ASSERT_EQ(bytes.size(), kSectors * kSector);
      for (std::size_t s = 0; s < kSectors; ++s) {
        const int value = static_cast<int>(bytes[s * kSector]);
        for (std::size_t b = 0; b < kSector; ++b) {
          ASSERT_EQ(static_cast<int>(bytes[s * kSector + b]), value) << "sector " << s;
        }
        const auto& allowed = versions[s];
        ASSERT_THAT(allowed, testing::Contains(value)) << "sector " << s;
        if (policy == PowerLoss::kDropUnsynced) {
          ASSERT_EQ(value, allowed.front());
        }
        if (policy == PowerLoss::kKeepAll) {
          ASSERT_EQ(value, allowed.back());
        }
        if (policy == PowerLoss::kTearLast) {  // back by at most one version
          ASSERT_TRUE(value == allowed.back() ||
                      (allowed.back() == version && value == allowed.at(allowed.size() - 2)));
        }
        if (allowed.size() > 1) {
          ++(value == allowed.back()    ? kept_newest
             : value == allowed.front() ? went_back
                                        : old_over_new);
        }
      }
    }
  }
  EXPECT_GT(kept_newest, 1000);
  EXPECT_GT(went_back, 1000);
  EXPECT_GT(old_over_new, 500);
}

TEST_F(SimDrivePower, RepeatsFromASeedAndDiffersBetweenSeeds) {
  const auto survivor = [](std::uint64_t seed) {
    VirtualLoop loop;
    SimDrive drive(loop, {});
    auto file = open_file(drive, "/f");
    EXPECT_OK(drive.files().sync_directory("/"));
    EXPECT_OK(file->allocate(16 * 4096));
    EXPECT_EQ(sync_file(drive, *file), 0);
    for (int i = 0; i < 16; ++i) {
      write_at(drive, *file, static_cast<std::uint64_t>(i) * 4096, filled(4096, i + 1));
    }
    drive.power_loss(PowerLoss::kAny, seed);
    const auto bytes = *drive.content("/f", SimDrive::View::kPresent);
    std::string sectors;
    for (std::size_t i = 0; i < bytes.size(); i += kSector) {
      sectors += static_cast<char>('a' + static_cast<int>(bytes[i]));
    }
    return sectors;
  };
  EXPECT_EQ(survivor(1), survivor(1));
  std::set<std::string> different;
  for (std::uint64_t seed = 0; seed < 20; ++seed) different.insert(survivor(seed));
  EXPECT_EQ(different.size(), 20U);
}

// ---- sizes ------------------------------------------------------------------------------------

TEST_F(SimDrivePower, SizesAreThoseOfSomeMomentOrCombinationOfThem) {
  std::map<PowerLoss, std::set<std::uint64_t>> seen;
  for (const PowerLoss policy : kRandomPolicies) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const std::string path = "/f" + name_of(policy) + std::to_string(seed);
      auto file = durable_file(path, 8192, 1);
      ASSERT_OK(file->truncate(4096));  // loses the second block for good, if it survives
      ASSERT_OK(file->allocate(12'288));
      ASSERT_OK(file->truncate(20'480));
      lose(policy, seed);
      const auto bytes = present(path);
      seen[policy].insert(bytes.size());
      for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 4096); ++i) {
        ASSERT_EQ(bytes[i], std::byte{1});
      }
      for (std::size_t i = 4096; i < bytes.size(); ++i) {
        ASSERT_TRUE(bytes[i] == std::byte{0} || (i < 8192 && bytes[i] == std::byte{1})) << i;
      }
      if (policy == PowerLoss::kOrdered && bytes.size() > 8192) {
        ASSERT_EQ(bytes[4096], std::byte{0});
      }
    }
  }
  EXPECT_THAT(seen[PowerLoss::kOrdered], ElementsAre(4096, 8192, 12'288, 20'480));
  EXPECT_THAT(seen[PowerLoss::kAny], ElementsAre(4096, 8192, 12'288, 20'480));
}

TEST_F(SimDrivePower, AWriteThatGrewTheFileMayLandAndTheGrowthBeLost) {
  int grew = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::string path = "/f" + std::to_string(seed);
    auto file = durable_file(path, 4096, 1);
    ASSERT_EQ(write_at(drive_, *file, 4096, filled(4096, 2)), 4096);
    lose(PowerLoss::kOrdered, seed);
    const auto bytes = present(path);
    ASSERT_TRUE(bytes.size() == 4096 || bytes.size() == 8192);
    if (bytes.size() == 4096) {
      // Data that landed beyond the end must not reappear when the file grows again.
      auto again = open_file(drive_, path);
      ASSERT_OK(again->truncate(8192));
      EXPECT_EQ(present(path), runs({{4096, 1}, {4096, 0}}));
    } else {
      ++grew;
    }
  }
  EXPECT_GT(grew, 10);
  EXPECT_LT(grew, 50);
}

}  // namespace
}  // namespace sluice::aio
