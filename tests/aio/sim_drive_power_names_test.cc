// Power loss on the simulated drive: names, the end of all handles, and procedures that are cut at
// every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "aio/sim_drive.h"
#include "aio/units.h"
#include "tests/aio/sim_drive_power.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

// For each file the oracle keeps the places that it has been at since the drive was quiet; after
// the loss it must be at exactly one of them. A file that had a durable name and was neither
// removed nor replaced must not disappear. Folders move too. If no folder was synced in between,
// the ordered policy leaves the names of one moment.
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
      std::map<int, std::set<std::string>> places;  // by the number in the file's first byte
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
          case 2: {  // a folder moves with everything below it
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
          // Its own name must be one that it had; the folder may have moved.
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
    EXPECT_THAT(status.error().message(), HasSubstr("has no power"));
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
  options.write_gb_per_s = 4.096e-6;  // 4096 bytes take a second
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
  auto removed = durable_file("/removed", 4096, 2);  // syncs "/": "/gone" exists, empty
  ASSERT_OK(drive_.files().remove("/removed"));
  removed.reset();
  EXPECT_EQ(drive_.used_bytes(), 8192 + 64 * kKiB);
  lose(PowerLoss::kDropUnsynced);
  EXPECT_EQ(drive_.used_bytes(), 8192 + 4096U);
  EXPECT_EQ(present("/removed"), filled(4096, 2));
  EXPECT_EQ(present("/gone"), std::vector<std::byte>());
}

// ---- power lost at every step of a procedure --------------------------------------------------

// The classic way to replace a file, and wrong variants of it.
struct Procedure {
  bool sync_file = true;
  bool sync_folder = true;
  bool in_place = false;
};

// Replaces /dir/state by a new version; true if it reports that the new one is safe.
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
  int acknowledged = 0;  // the procedure ended before the power loss
  int unkept = 0;        // acknowledged, but the old content remains
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
