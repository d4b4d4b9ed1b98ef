// Power loss on the simulated drive, each policy against an oracle that knows nothing of how the
// drive keeps its journal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "aio/sim_drive.h"
#include "aio/units.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kSector = 512;
constexpr PowerLoss kAllPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny,
                                      PowerLoss::kDropUnsynced, PowerLoss::kKeepAll,
                                      PowerLoss::kTearLast};
constexpr PowerLoss kRandomPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny};

std::string name_of(PowerLoss policy) {
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
  // The next loss need not carry along what the loop has looked at.
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

// For each 512-byte sector the oracle knows the version of the last sync and every version written
// since; what survives must be one of them, whole.
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
        if (policy == PowerLoss::kTearLast) {  // back by one version at most
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
      // What may have landed behind the end must not come back when the file grows again.
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

// ---- names ------------------------------------------------------------------------------------

TEST_F(SimDrivePower, AFilesNameNeedsTheSyncOfItsFolderAndTheFoldersTheSyncOfItsOwn) {
  FileSystem& files = drive_.files();
  auto file = open_file(drive_, "/named");
  ASSERT_EQ(write_at(drive_, *file, 0, filled(4096, 1)), 4096);
  ASSERT_EQ(sync_file(drive_, *file), 0);
  EXPECT_FALSE(drive_.content("/named", SimDrive::View::kDurable).has_value());
  ASSERT_OK(files.make_directories("/d/e"));
  open_file(drive_, "/d/e/f");
  ASSERT_OK(files.sync_directory("/d/e"));
  lose(PowerLoss::kDropUnsynced);
  EXPECT_TRUE(files.list("/")->empty());

  open_file(drive_, "/named");
  ASSERT_OK(files.make_directories("/d/e"));
  open_file(drive_, "/d/e/f");
  for (const char* folder : {"/d/e", "/d", "/"}) ASSERT_OK(files.sync_directory(folder));
  lose(PowerLoss::kDropUnsynced);
  EXPECT_THAT(*files.list("/"), ElementsAre("d", "named"));
  EXPECT_TRUE(*files.exists("/d/e/f"));
}

TEST_F(SimDrivePower, OrderedKeepsAPrefixOfTheMetadataAndAnyMoreThanThat) {
  std::map<PowerLoss, std::set<std::string>> seen;
  for (const PowerLoss policy : kRandomPolicies) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      VirtualLoop loop;
      SimDrive drive(loop, {});
      for (const char* name : {"/a", "/b", "/c", "/d"}) open_file(drive, name);
      drive.power_loss(policy, seed);
      drive.restore_power();
      std::string names;
      const auto list = drive.files().list("/");
      for (const auto& name : *list) names += name;
      seen[policy].insert(names);
    }
  }
  EXPECT_THAT(seen[PowerLoss::kOrdered], ElementsAre("", "a", "ab", "abc", "abcd"));
  EXPECT_EQ(seen[PowerLoss::kAny].size(), 16U);
}

TEST_F(SimDrivePower, ARenameShowsTheOldOrTheNewFileWhole) {
  std::set<int> seen;
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(name_of(policy) + ", seed " + std::to_string(seed));
      const std::string folder =
          "/" + std::to_string(static_cast<int>(policy)) + "-" + std::to_string(seed);
      ASSERT_OK(drive_.files().make_directories(folder));
      durable_file(folder + "/old", 4096, 1);
      durable_file(folder + "/new", 4096, 2);
      ASSERT_OK(drive_.files().sync_directory(folder));
      ASSERT_OK(drive_.files().rename(folder + "/new", folder + "/old"));
      lose(policy, seed);
      const auto old_bytes = present(folder + "/old");
      const bool renamed = old_bytes == filled(4096, 2);
      ASSERT_TRUE(renamed || old_bytes == filled(4096, 1));
      ASSERT_EQ(present(folder + "/new"), renamed ? std::vector<std::byte>() : filled(4096, 2));
      seen.insert(renamed ? 1 : 0);
      forget(folder + "/old");
      if (!renamed) forget(folder + "/new");
    }
  }
  EXPECT_EQ(seen.size(), 2U);
}

// The oracle keeps, for each file, the places it has been at since the drive was quiet: afterwards
// it is at exactly one of them. A file that had a durable name and was neither removed nor replaced
// is never gone. Folders move too. Where no folder was synced in between, the ordered policy leaves
// the names of one moment.
TEST_F(SimDrivePower, RandomNamesNeverLoseOrDoubleAFile) {
  const std::string nowhere;
  int lost = 0;
  int kept = 0;
  int moments = 0;
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      SCOPED_TRACE(name_of(policy) + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      VirtualLoop loop;
      SimDrive drive(loop, {});
      FileSystem& files = drive.files();
      ASSERT_OK(files.make_directories("/x/z"));
      ASSERT_OK(files.make_directories("/y"));
      std::map<int, std::set<std::string>> places;  // of each file, by the number in its first byte
      std::map<std::string, int> now;
      const std::vector<std::string> folders = {"/", "/x/", "/y/", "/x/z/", "/w/", "/w/z/"};
      const auto any_path = [&] {
        return folders[random() % folders.size()] + static_cast<char>('a' + random() % 4);
      };
      int next = 1;
      const auto create = [&](const std::string& path) {
        auto opened = files.open(path, {.access = OpenOptions::Access::kReadWrite,
                                        .create = OpenOptions::Create::kMustNotExist});
        if (!opened.ok()) return;
        write_at(drive, **opened, 0, filled(4096, next));
        EXPECT_EQ(sync_file(drive, **opened), 0);
        places[next] = {nowhere, path};
        now[path] = next++;
      };
      for (int i = 0; i < 8; ++i) create(any_path());
      for (const char* folder : {"/", "/x", "/y", "/x/z"}) {
        ASSERT_OK(files.sync_directory(folder));
      }
      for (auto& [number, at] : places) at.erase(nowhere);
      std::vector<std::map<std::string, int>> history = {now};
      bool synced = false;
      for (int i = 0; i < 25; ++i) {
        const std::string from = any_path();
        const std::string to = any_path();
        switch (random() % 8) {
          case 0:
            create(from);
            break;
          case 1:
            if (files.remove(from).ok()) {
              places[now.at(from)].insert(nowhere);
              now.erase(from);
            }
            break;
          case 2: {  // a folder moves, and all below it
            const std::vector<std::string> movable = {"/x", "/w", "/x/z", "/w/z", "/y/v"};
            const std::string& a = movable[random() % movable.size()];
            const std::string& b = movable[random() % movable.size()];
            if (a == b || !files.rename(a, b).ok()) break;
            std::map<std::string, int> after;
            for (const auto& [path, number] : now) {
              const bool below = path.starts_with(a + "/");
              after[below ? b + path.substr(a.size()) : path] = number;
            }
            now = after;
            break;
          }
          case 3:
            if (seed % 2 == 0) {
              synced |= files.sync_directory(folders[random() % folders.size()]).ok();
            }
            break;
          default:
            if (from != to && files.rename(from, to).ok()) {
              if (now.contains(to)) places[now.at(to)].insert(nowhere);
              now[to] = now.at(from);
              places[now[to]].insert(to);
              now.erase(from);
            }
            break;
        }
        history.push_back(now);
      }
      drive.power_loss(policy, seed);
      drive.restore_power();
      std::map<int, std::vector<std::string>> found;
      std::map<std::string, int> left;
      const std::function<void(const std::string&)> visit = [&](const std::string& folder) {
        const auto names = files.list(folder);
        ASSERT_TRUE(names.ok());
        for (const std::string& name : *names) {
          const std::string path = folder + name;
          if (const auto bytes = drive.content(path, SimDrive::View::kPresent)) {
            ASSERT_EQ(bytes->size(), 4096U) << path << " was synced";
            found[static_cast<int>((*bytes)[0])].push_back(path);
            left[path] = static_cast<int>((*bytes)[0]);
          } else {
            visit(path + "/");
          }
        }
      };
      visit("/");
      for (const auto& [number, at] : places) {
        ASSERT_LE(found[number].size(), 1U) << "file " << number << " has two names";
        if (found[number].empty()) {
          ASSERT_TRUE(at.contains(nowhere)) << "file " << number << " is lost";
          ++lost;
        } else {
          // Its own name must be one it had; the folder may have moved.
          const std::string& path = found[number].front();
          const char name = path.back();
          ASSERT_TRUE(std::any_of(at.begin(), at.end(), [&](const std::string& place) {
            return !place.empty() && place.back() == name;
          })) << path;
          ++kept;
        }
      }
      if (policy == PowerLoss::kKeepAll || policy == PowerLoss::kTearLast) {
        ASSERT_EQ(left, now);
      }
      if (policy == PowerLoss::kDropUnsynced && !synced) {
        ASSERT_EQ(left, history.front());
      }
      if (policy == PowerLoss::kOrdered && !synced) {
        ASSERT_THAT(history, testing::Contains(left)) << "not the names of any one moment";
        ++moments;
      }
    }
  }
  EXPECT_GT(lost, 100);
  EXPECT_GT(kept, 1000);
  EXPECT_GE(moments, 150);
}

// ---- without power ----------------------------------------------------------------------------

TEST_F(SimDrivePower, EverythingFailsUntilThePowerIsBackAndOldHandlesForEver) {
  auto file = durable_file("/f", 4096, 1);
  FileSystem& files = drive_.files();
  std::deque<TestOp> ops;
  const AlignedBytes data(4096);
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kSync}) {
    ops.emplace_back(kind, file.get(), 0, data.data(), 4096).submit(drive_);
  }
  ops.emplace_back(IoKind::kWrite, file.get(), 0, data.data(), 4096);
  ops.back().delay_ns = 1'000'000;  // has not started
  ops.back().submit(drive_);
  TestOp nop(IoKind::kNop, nullptr);
  nop.submit(drive_);
  const std::int64_t now_ns = loop_.now_ns();
  drive_.power_loss(PowerLoss::kAny, 1);
  for (const TestOp& op : ops) EXPECT_FALSE(op.result.has_value()) << "not inside power_loss()";
  ops.emplace_back(IoKind::kRead, file.get(), 0, data.data(), 4096).submit(drive_);
  loop_.run();
  for (const TestOp& op : ops) {
    EXPECT_EQ(op.result, -EIO);
    EXPECT_EQ(op.done_ns, now_ns);
  }
  EXPECT_EQ(nop.result, 0);
  EXPECT_EQ(drive_.ops_in_flight(), 0);

  const auto refused = [](const Status& status) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().error_number(), EIO);
    EXPECT_THAT(status.error().message(), HasSubstr("the simulated drive has no power"));
  };
  EXPECT_FALSE(drive_.powered());
  refused(files.open("/f", {}).status());
  refused(files.remove("/f"));
  refused(files.rename("/f", "/g"));
  refused(files.make_directories("/d"));
  refused(files.sync_directory("/"));
  refused(files.exists("/f").status());
  refused(files.list("/").status());
  refused(files.free_bytes("/").status());
  refused(file->truncate(0));
  refused(file->allocate(1));
  refused(file->size_bytes().status());

  drive_.restore_power();
  EXPECT_TRUE(drive_.powered());
  EXPECT_TRUE(*files.exists("/f"));
  EXPECT_EQ(sync_file(drive_, *file), -EIO);
  refused(file->truncate(0));
  auto again = open_file(drive_, "/f");
  EXPECT_EQ(sync_file(drive_, *again), 0);
  file.reset();  // must not disturb the new handle's space
  EXPECT_EQ(drive_.used_bytes(), 4096U);
}

TEST_F(SimDrivePower, EndsLocksWhoseReleaseLaterIsHarmless) {
  FileSystem& files = drive_.files();
  auto before = files.lock("/lock");
  ASSERT_OK(before);
  ASSERT_OK(files.sync_directory("/"));
  drive_.power_loss(PowerLoss::kDropUnsynced, 1);
  EXPECT_EQ(files.lock("/lock").error().error_number(), EIO);
  drive_.restore_power();
  auto after = files.lock("/lock");
  ASSERT_OK(after);
  before->reset();
  EXPECT_EQ(files.lock("/lock").error().code(), ErrorCode::kBusy);
  after->reset();
  EXPECT_OK(files.lock("/lock"));
}

TEST_F(SimDrivePower, ALockThatMakesItsFileIsAnOperationAtWhichPowerCanFail) {
  FileSystem& files = drive_.files();
  drive_.fail_after_ops(1, PowerLoss::kDropUnsynced, 1);
  EXPECT_EQ(files.lock("/lock").error().error_number(), EIO);
  EXPECT_FALSE(drive_.powered());
  drive_.restore_power();
  EXPECT_FALSE(*files.exists("/lock"));
  EXPECT_OK(files.lock("/lock"));
}

TEST_F(SimDrivePower, SlotsAndPipeAreFreeAgainAfterALoss) {
  SimDrive::Options options;
  options.depth = 2;
  options.write_latency_us = 20;
  options.write_gb_per_s = 4.096e-6;  // a second for 4096 bytes
  SimDrive drive(loop_, options);
  auto file = open_file(drive, "/f");
  ASSERT_OK(drive.files().sync_directory("/"));
  const AlignedBytes data(4096);
  std::deque<TestOp> ops;
  for (int i = 0; i < 8; ++i) {
    ops.emplace_back(IoKind::kWrite, file.get(), 0, data.data(), 4096).submit(drive);
  }
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(loop_.run_one());  // two are in the pipe
  drive.power_loss(PowerLoss::kDropUnsynced, 1);
  loop_.run();
  drive.restore_power();
  auto again = open_file(drive, "/f");
  TestOp write(IoKind::kWrite, again.get(), 0, data.data(), 4096);
  const std::int64_t start_ns = loop_.now_ns();
  write.submit(drive);
  loop_.run();
  EXPECT_EQ(write.result, 4096);
  EXPECT_EQ(write.done_ns - start_ns, 1'000'020'000);
  EXPECT_EQ(drive.ops_in_flight(), 0);
}

TEST_F(SimDrivePower, SpaceIsCountedAnewAfterALoss) {
  auto kept = durable_file("/kept", 8192, 1);
  auto gone = open_file(drive_, "/gone");
  ASSERT_OK(gone->allocate(64 * kKiB));
  auto removed = durable_file("/removed", 4096, 2);  // syncs "/": so "/gone" is named, and empty
  ASSERT_OK(drive_.files().remove("/removed"));
  removed.reset();
  EXPECT_EQ(drive_.used_bytes(), 8192 + 64 * kKiB);
  lose(PowerLoss::kDropUnsynced);
  EXPECT_EQ(drive_.used_bytes(), 8192 + 4096U);
  EXPECT_EQ(present("/removed"), filled(4096, 2));
  EXPECT_EQ(present("/gone"), std::vector<std::byte>());
}

// ---- power lost at every step of a procedure --------------------------------------------------

// The classic way to replace a file, and ways in which it is done wrong.
struct Procedure {
  bool sync_file = true;
  bool sync_folder = true;
  bool in_place = false;
};

// Replaces /dir/state by a new version; true when it says that the new one is safe.
bool replace(SimDrive& drive, const Procedure& procedure, const std::vector<std::byte>& bytes) {
  FileSystem& files = drive.files();
  const std::string path = procedure.in_place ? "/dir/state" : "/dir/state.tmp";
  auto file = files.open(
      path, {.access = OpenOptions::Access::kReadWrite, .create = OpenOptions::Create::kIfMissing});
  if (!file.ok()) return false;
  const auto half = static_cast<std::ptrdiff_t>(bytes.size() / 2);
  const auto length = static_cast<std::int64_t>(half);
  if (write_at(drive, **file, 0, {bytes.begin(), bytes.begin() + half}) != length) return false;
  if (write_at(drive, **file, static_cast<std::uint64_t>(half),
               {bytes.begin() + half, bytes.end()}) != length) {
    return false;
  }
  if (procedure.sync_file && sync_file(drive, **file) != 0) return false;
  if (!procedure.in_place && !files.rename(path, "/dir/state").ok()) return false;
  return !procedure.sync_folder || files.sync_directory("/dir").ok();
}

struct Outcome {
  int losses = 0;        // power losses tried
  int broken = 0;        // neither the old nor the new content
  int acknowledged = 0;  // the procedure ended before the power did
  int unkept = 0;        // acknowledged, and yet the old content
  int saw_old = 0;
  int saw_new = 0;
};

Outcome cut_power_everywhere(const Procedure& procedure) {
  const auto old_bytes = random_bytes(4 * 4096, 1);
  const auto new_bytes = random_bytes(4 * 4096, 2);
  Outcome outcome;
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      bool ended = false;
      for (std::uint64_t n = 1; !ended; ++n) {
        VirtualLoop loop;
        SimDrive drive(loop, {});
        EXPECT_OK(drive.files().make_directories("/dir"));
        EXPECT_OK(drive.files().sync_directory("/"));
        EXPECT_TRUE(replace(drive, {}, old_bytes));
        const std::uint64_t before = drive.operations();
        drive.fail_after_ops(n, policy, seed);
        const bool safe = replace(drive, procedure, new_bytes);
        ended = drive.powered();
        if (ended) {  // n is beyond the procedure's end
          EXPECT_TRUE(safe);
          EXPECT_EQ(drive.operations() - before, n - 1);
          drive.power_loss(policy, seed);
        } else {
          EXPECT_FALSE(safe);
          EXPECT_EQ(drive.operations() - before, n);
        }
        loop.run();
        drive.restore_power();
        const auto bytes = drive.content("/dir/state", SimDrive::View::kPresent);
        ++outcome.losses;
        if (safe) ++outcome.acknowledged;
        if (bytes == new_bytes) {
          ++outcome.saw_new;
        } else if (bytes == old_bytes) {
          ++outcome.saw_old;
          if (safe) ++outcome.unkept;
        } else {
          ++outcome.broken;
        }
      }
    }
  }
  return outcome;
}

TEST(SimDriveCrash, ReplacingAFileTheRightWayAlwaysLeavesOldOrNew) {
  const Outcome outcome = cut_power_everywhere({});
  EXPECT_EQ(outcome.broken, 0);
  EXPECT_EQ(outcome.unkept, 0);
  EXPECT_GT(outcome.saw_old, 100);
  EXPECT_GT(outcome.saw_new, 100);
  // create, write, write, sync, rename, sync folder: six moments, and one after the end.
  EXPECT_EQ(outcome.losses, 7 * 5 * 20);
  EXPECT_EQ(outcome.acknowledged, 5 * 20);
}

TEST(SimDriveCrash, FindsTheFaultInEveryWrongWay) {
  EXPECT_GT(cut_power_everywhere({.sync_file = false}).broken, 0);
  EXPECT_GT(cut_power_everywhere({.sync_folder = false}).unkept, 0);
  EXPECT_GT(cut_power_everywhere({.in_place = true}).broken, 0);
}

}  // namespace
}  // namespace sluice::aio
