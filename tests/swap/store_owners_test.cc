// Store directories of other machines and processes, and many processes that want one at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aio/small_file.h"
#include "swap/store_directory.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_directory_under_test.h"

namespace sluice::swap {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// ---- owners of other machines -----------------------------------------------------------------

RunOptions on_another_machine(std::int64_t pid) {
  RunOptions options = impatient(pid);
  options.self.host = "there";
  options.self.boot_id = "b-1";
  options.self.machine_id = "m-1";
  return options;
}

// Like on NFS.
RunOptions without_shared_locks() {
  RunOptions options = impatient(8);
  options.self.boot_id = "b-2";
  options.self.machine_id = "m-2";
  options.locks_reach_all = [](const std::string&) { return false; };
  return options;
}

TEST(SameMachine, GoesByTheBootAndElseByTheInstallationAndItsName) {
  const RunOwner owner{.pid = 1, .host = "a", .started_utc = "", .boot_id = "b", .machine_id = "m"};
  const auto changed = [&](std::string host, std::string boot, std::string machine) {
    RunOwner other = owner;
    other.host = std::move(host);
    other.boot_id = std::move(boot);
    other.machine_id = std::move(machine);
    return other;
  };
  EXPECT_TRUE(same_machine(owner, changed("pod-2", "b", "")));
  EXPECT_TRUE(same_machine(owner, changed("a", "rebooted", "m")));
  EXPECT_TRUE(same_machine(owner, changed("a", "", ""))) << "written by an older version";
  EXPECT_FALSE(same_machine(owner, changed("b", "rebooted", "m"))) << "from one image";
  EXPECT_FALSE(same_machine(owner, changed("a", "rebooted", "other")));
  EXPECT_FALSE(same_machine(owner, changed("b", "", "")));
}

TEST(SeesLock, OfTheSameMachineAndWhereLocksEndAtTheMountOfTheSameBootAndMount) {
  const RunOwner self{.pid = 1, .host = "a", .boot_id = "b", .machine_id = "m", .device = 52};
  RunOwner other = self;
  other.host = "pod-2";
  other.device = 53;
  EXPECT_TRUE(sees_lock_of(self, other, true));
  EXPECT_FALSE(sees_lock_of(self, other, false)) << "another FUSE mount of the same folder";
  other.device = 0;
  EXPECT_FALSE(sees_lock_of(self, other, false)) << "written by an older version";
  other.device = 52;
  EXPECT_TRUE(sees_lock_of(self, other, false));
  other.boot_id = "rebooted";
  other.host = "a";
  EXPECT_FALSE(sees_lock_of(self, other, false));
  EXPECT_TRUE(sees_lock_of(self, other, true));
  other.machine_id = "other";
  EXPECT_FALSE(sees_lock_of(self, other, true)) << "it has this drive over the network";
}

TEST_F(StoreDirectoryOnFiles, OfAnotherMachineIsRefusedHoweverOftenAndLeftAsItWas) {
  { ASSERT_OK(take("a", on_another_machine(4711))); }
  write("sluice-a/records", "theirs");
  std::filesystem::remove(folder_.file("sluice-a/lock"));
  const auto content = [&] {
    std::string text;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("sluice-a"))) {
      std::ifstream file(entry.path());
      text += entry.path().filename().string() + ":" +
              std::string(std::istreambuf_iterator<char>(file), {}) + "\n";
    }
    return text;
  };
  const std::string before = content();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto run = take("a", without_shared_locks());
    ASSERT_FALSE(run.ok()) << "attempt " << attempt;
    EXPECT_EQ(run.error().code(), ErrorCode::kBusy);
    EXPECT_THAT(run.error().message(),
                testing::AllOf(ContainsRegex("process 4711.*there"),
                               HasSubstr("rm -r " + folder_.file("sluice-a"))));
    EXPECT_EQ(content(), before);
  }
}

// A machine that mounts the local drive over the network holds locks that its server does not see.
TEST_F(StoreDirectoryOnFiles, OfAnotherMachineIsRefusedOnALocalDriveToo) {
  { ASSERT_OK(take("a", on_another_machine(4711))); }
  const auto run = take("a");
  EXPECT_EQ(run.status().error().code(), ErrorCode::kBusy);
  EXPECT_THAT(run.status().error().message(), HasSubstr("rm -r " + folder_.file("sluice-a")));
  EXPECT_EQ(runs().at(0).condition, StoreCondition::kElsewhere);
  EXPECT_EQ(runs().at(0).owner->pid, 4711);
}

TEST_F(StoreDirectoryOnFiles, OfAnotherMountIsRefusedWhereLocksEndAtTheMount) {
  RunOptions pod = without_shared_locks();
  pod.device = [](const std::string&) { return std::uint64_t{52}; };
  { ASSERT_OK(take("a", pod)); }
  { ASSERT_OK(take("a", pod)); }
  pod.device = [](const std::string&) { return std::uint64_t{53}; };
  EXPECT_EQ(take("a", pod).status().error().code(), ErrorCode::kBusy);
}

TEST_F(StoreDirectoryOnFiles, OfAPodThatRestartsUnderAnotherNameIsTaken) {
  RunOptions pod = on_another_machine(1);
  { ASSERT_OK(take("a", pod)); }
  pod.self.host = "pod-2";
  pod.locks_reach_all = without_shared_locks().locks_reach_all;
  EXPECT_OK(take("a", pod));
}

TEST_F(StoreDirectoryOnFiles, AreTakenOnAllPathsOrOnNone) {
  const std::vector<std::string> paths = {folder_.file("one"), folder_.file("two")};
  for (const std::string& path : paths) std::filesystem::create_directory(path);
  { ASSERT_OK(StoreDirectory::take(*queue_, paths[1], "a", on_another_machine(4711))); }
  const auto refused = StoreDirectory::take_all(*queue_, paths, "a", without_shared_locks());
  EXPECT_EQ(refused.status().error().code(), ErrorCode::kBusy);
  EXPECT_TRUE(std::filesystem::is_empty(paths[0]));
  std::filesystem::remove_all(paths[1] + "/sluice-a");
  {
    const auto busy = StoreDirectory::take(*queue_, paths[1], "a", impatient());
    const auto run = StoreDirectory::take_all(*queue_, paths, "a", without_shared_locks());
    EXPECT_EQ(run.status().error().code(), ErrorCode::kBusy);
    EXPECT_TRUE(std::filesystem::is_empty(paths[0]));
  }
  std::filesystem::remove_all(paths[1] + "/sluice-a");
  const auto taken = StoreDirectory::take_all(*queue_, paths, "a", without_shared_locks());
  ASSERT_OK(taken);
  EXPECT_EQ(taken->at(1)->path(), paths[1] + "/sluice-a");
}

// ---- at once ----------------------------------------------------------------------------------

TEST_F(StoreDirectoryOnFiles, WaitsForALockThatIsHeldForAMoment) {
  { ASSERT_OK(take("a")); }
  auto moment = backend_->files().lock(folder_.file("sluice-a/lock"));
  ASSERT_OK(moment);
  EXPECT_EQ(take("a").error().code(), ErrorCode::kBusy);
  RunOptions patient = impatient();
  patient.lock_wait_ms = 60'000;
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    moment->reset();
  });
  EXPECT_OK(take("a", patient));
  release.join();
}

// All threads take, remove and inspect one name at once: never two holders, and never another error
// than "busy".
TEST_F(StoreDirectoryOnFiles, HasOneHolderWhileManyTakeAndRemoveIt) {
  constexpr int kTakesEach = 25;
  std::atomic<int> takers{3};
  std::atomic<int> holders{0};
  std::atomic<int> clashes{0};
  std::atomic<int> taken{0};
  std::mutex mutex;
  std::vector<std::string> errors;  // guarded by mutex
  const auto fail = [&](const Error& error) {
    const std::lock_guard guard(mutex);
    errors.push_back(error.message());
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const std::shared_ptr<void> at_the_end(nullptr, [&](void*) { --takers; });
      for (int mine = 0, attempt = 0; mine < kTakesEach && attempt < 1'000'000; ++attempt) {
        const auto run = take("a", impatient(t));
        if (!run.ok()) {
          if (run.error().code() != ErrorCode::kBusy) return fail(run.error());
          std::this_thread::yield();
          continue;
        }
        ++mine;
        ++taken;
        if (++holders > 1) ++clashes;
        const Status written = aio::write_small_file(*queue_, (*run)->path() + "/state", "x");
        if (!written.ok()) fail(written.error());
        const auto owner = read_owner(*queue_, (*run)->path());
        if (!owner.ok() || !owner->has_value() || (*owner)->pid != t) ++clashes;
        --holders;
        if (mine % 3 == 0) continue;  // leaves the files
        const Status removed = (*run)->remove_all();
        if (!removed.ok()) fail(removed.error());
      }
    });
  }
  threads.emplace_back([&] {
    while (takers > 0) {
      const auto found = find_runs(*queue_, folder_.path(), impatient());
      if (!found.ok()) return fail(found.error());
    }
  });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
  EXPECT_THAT(errors, testing::IsEmpty());
  EXPECT_EQ(taken, 3 * kTakesEach);
  const auto last = take("a");
  ASSERT_OK(last);
  ASSERT_OK((*last)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// In a separate process: takes the run, reports that, and waits to be killed.
[[noreturn]] void take_and_wait(const std::string& path, int say) {
  const auto backend = make_backend_or_die(BackendKind::kPosix);
  const auto queue = make_queue_or_die(*backend, {});
  const auto run = StoreDirectory::take(*queue, path, "a");
  const char said = run.ok() ? 'y' : 'n';
  if (::write(say, &said, 1) != 1) _exit(1);
  for (;;) ::pause();
}

TEST(StoreDirectoryOfAProcess, IsFreeOnceItWasKilledAndTellsWhoItWas) {
  const aio::TemporaryFolder folder;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();  // before this process has threads
  ASSERT_GE(child, 0);
  if (child == 0) take_and_wait(folder.path(), ends[1]);
  char said = 0;
  ASSERT_EQ(::read(ends[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');

  const auto backend = make_backend_or_die(BackendKind::kPosix);
  const auto queue = make_queue_or_die(*backend, {});
  RunOptions options;
  options.lock_wait_ms = 0;
  const auto busy = StoreDirectory::take(*queue, folder.path(), "a", options);
  ASSERT_FALSE(busy.ok());
  EXPECT_EQ(busy.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(busy.error().message(), HasSubstr("process " + std::to_string(child) + " on host "));
  const auto alive = find_runs(*queue, folder.path());
  ASSERT_OK(alive);
  ASSERT_EQ(alive->size(), 1U);
  EXPECT_EQ(alive->front().condition, StoreCondition::kInUse);

  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto dead = find_runs(*queue, folder.path());
  ASSERT_OK(dead);
  ASSERT_EQ(dead->size(), 1U);
  EXPECT_EQ(dead->front().condition, StoreCondition::kLeftover);
  EXPECT_EQ(dead->front().owner->pid, child);
  auto next = StoreDirectory::take(*queue, folder.path(), "a", options);
  ASSERT_OK(next);
  EXPECT_EQ((*next)->previous_owner()->pid, child);
  EXPECT_OK((*next)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  for (const int end : ends) ::close(end);
}

}  // namespace
}  // namespace sluice::swap
