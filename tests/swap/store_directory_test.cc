#include "swap/store_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
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
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::swap {
namespace {

using aio::BackendKind;
using aio::FaultBackend;
using aio::FaultKind;
using aio::FaultPlan;
using aio::FaultTarget;
using aio::FileSystem;
using aio::IoQueue;
using aio::make_backend_or_die;
using aio::make_queue_or_die;
using aio::PowerLoss;
using aio::SimDrive;
using testing::HasSubstr;

constexpr PowerLoss kAllPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny,
                                      PowerLoss::kDropUnsynced, PowerLoss::kKeepAll,
                                      PowerLoss::kTearLast};

// Never waits for a lock, and says the same at any time and place.
RunOptions impatient(std::int64_t pid = 7) {
  return {.self = {.pid = pid, .host = "here", .started_utc = "2026-01-02T03:04:05Z"},
          .lock_wait_ms = 0,
          .locks_reach_all = [](const std::string&) { return true; },
          .device = [](const std::string&) { return std::uint64_t{0}; }};
}

// ---- real files -------------------------------------------------------------------------------

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

TEST_F(StoreDirectoryOnFiles, IsMadeAndSaysWhoseItIs) {
  auto run = take("gpt2-xl.1");
  ASSERT_OK(run);
  EXPECT_EQ((*run)->path(), folder_.file("sluice-gpt2-xl.1"));
  EXPECT_EQ((*run)->previous_owner(), std::nullopt);
  std::ifstream owner(folder_.file("sluice-gpt2-xl.1/owner.json"));
  std::stringstream text;
  text << owner.rdbuf();
  EXPECT_EQ(text.str(),
            "{\n  \"pid\": 7,\n  \"host\": \"here\",\n"
            "  \"started_utc\": \"2026-01-02T03:04:05Z\"\n}\n");
}

TEST_F(StoreDirectoryOnFiles, BelongsByDefaultToThisProcessOnThisHostFromNowOn) {
  const RunOwner self = RunOptions().self;
  EXPECT_EQ(self.pid, ::getpid());
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size()), 0);
  EXPECT_EQ(self.host, host.data());
  std::tm utc{};
  ASSERT_EQ(::strptime(self.started_utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc),
            self.started_utc.c_str() + 20);
  EXPECT_LE(std::abs(std::difftime(::timegm(&utc), std::time(nullptr))), 5);
}

TEST_F(StoreDirectoryOnFiles, IsTakenByOneAtATimeAndABusyOneNamesItsOwner) {
  auto first = take("a");
  ASSERT_OK(first);
  const auto second = take("a", impatient(8));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(second.error().message(),
            folder_.file("sluice-a") +
                " is in use by process 7 on host here since 2026-01-02T03:04:05Z: choose another "
                "name for this run, or end that one");
  EXPECT_OK(take("b"));
  std::filesystem::remove((*first)->path() + "/owner.json");
  EXPECT_THAT(take("a").error().message(), HasSubstr("has not identified itself"));
  first->reset();
  EXPECT_OK(take("a"));
}

TEST_F(StoreDirectoryOnFiles, KeepsTheFilesOfARunThatEndedAndTellsWhoseTheyWere) {
  { ASSERT_OK(take("a")); }
  write("sluice-a/state.0", "state");
  const auto next = take("a", impatient(8));
  ASSERT_OK(next);
  ASSERT_TRUE((*next)->previous_owner().has_value());
  EXPECT_EQ((*next)->previous_owner()->pid, 7);
  EXPECT_TRUE(std::filesystem::exists(folder_.file("sluice-a/state.0")));
  EXPECT_EQ(runs().at(0).owner->pid, 8);
}

TEST_F(StoreDirectoryOnFiles, RefusesNamesThatAreNoneForARun) {
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("../a"), std::string("a b"), std::string("\xC3\xA9"), std::string(65, 'a'),
        std::string("a\0b", 3), std::string("a\n")}) {
    const auto run = take(bad);
    ASSERT_FALSE(run.ok()) << bad;
    EXPECT_EQ(run.error().code(), ErrorCode::kInvalidArgument) << bad;
    EXPECT_THAT(run.error().message(), HasSubstr("is no name for a run"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  for (const std::string& good : {std::string(64, 'a'), std::string("Aa09._-"), std::string("-")}) {
    EXPECT_OK(take(good));
  }
}

TEST_F(StoreDirectoryOnFiles, WantsThePathToExist) {
  const std::string missing = folder_.file("missing");
  const auto sentence = testing::AllOf(
      testing::StartsWith("NVMe path: " + missing + " does not exist; " +
                          std::filesystem::canonical(folder_.path()).string() + " does, on the "),
      testing::EndsWith("mkdir -p " + missing));
  const auto run = StoreDirectory::take(*queue_, missing, "a", impatient());
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(run.error().message(), sentence);
  const auto found = find_runs(*queue_, missing, impatient());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(found.error().message(), sentence);
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST_F(StoreDirectoryOnFiles, RemovesEveryFileAndTheFolder) {
  auto run = take("a");
  ASSERT_OK(run);
  for (const char* name : {"state.0", "state.1", "manifest.new", "owner.json.new", ".hidden"}) {
    write(std::string("sluice-a/") + name, "x");
  }
  ASSERT_OK((*run)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_OK((*run)->remove_all());
  auto again = take("a", impatient(8));
  ASSERT_OK(again);
  EXPECT_EQ((*again)->previous_owner(), std::nullopt);
  run->reset();
  EXPECT_EQ(take("a").error().code(), ErrorCode::kBusy);
}

TEST_F(StoreDirectoryOnFiles, RemovesNothingWhereItHoldsAnUnknownFolder) {
  auto run = take("a");
  ASSERT_OK(run);
  write("sluice-a/state.0", "x");
  write("sluice-a/thesis/chapter1", "precious");
  const Status removed = (*run)->remove_all();
  ASSERT_FALSE(removed.ok());
  EXPECT_THAT(removed.error().message(), HasSubstr("sluice-a is not removed"));
  EXPECT_THAT(removed.error().message(), HasSubstr("the folder thesis"));
  EXPECT_TRUE(std::filesystem::exists(folder_.file("sluice-a/state.0")));
  EXPECT_EQ(take("a").error().code(), ErrorCode::kBusy) << "still held";
  std::filesystem::remove_all(folder_.file("sluice-a/thesis"));
  EXPECT_OK((*run)->remove_all());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(StoreDirectoryOnFiles, LeavesForeignFoldersAlone) {
  write("sluice-valley/photo.jpg", "photo");
  write("sluice-notes", "a file");
  std::filesystem::create_directory(folder_.file("sluice-empty"));
  write("sluice-.hidden/lock", "");
  write("other/lock", "");
  EXPECT_TRUE(runs().empty());
  const auto folder = take("valley");
  EXPECT_EQ(folder.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(folder.error().message(),
              HasSubstr("sluice-valley is a folder that no run has made"));
  const auto file = take("notes");
  EXPECT_EQ(file.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(file.error().message(), HasSubstr("sluice-notes is a file that no run has made"));
  EXPECT_OK(take("empty"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    left.push_back(entry.path().string().substr(folder_.path().size() + 1));
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre(
                        "sluice-valley", "sluice-valley/photo.jpg", "sluice-notes", "sluice-empty",
                        "sluice-empty/lock", "sluice-empty/owner.json", "sluice-.hidden",
                        "sluice-.hidden/lock", "other", "other/lock"));
}

TEST_F(StoreDirectoryOnFiles, FindsLiveAndDeadRunsAndWhatTheyHold) {
  const auto live = take("live");
  ASSERT_OK(live);
  { ASSERT_OK(take("dead")); }
  write("sluice-dead/state.0", std::string(5000, 'x'));
  write("sluice-dead/state.1", std::string(100, 'x'));
  write("sluice-dead/folder/file", "not counted");
  RunOptions elsewhere = impatient(9);
  elsewhere.self.host = "there";
  { ASSERT_OK(take("remote", elsewhere)); }
  write("sluice-garbled/lock", "");
  write("sluice-garbled/owner.json", "{\"pid\": \"seven\"}");
  write("sluice-large/owner.json", std::string(1 << 20, ' '));
  write("sluice-pipe/lock", "");
  ASSERT_EQ(::mkfifo(folder_.file("sluice-pipe/owner.json").c_str(), 0600), 0);
  write("sluice-unowned/lock", "");
  write("sluice-unowned/store.json", "whose?");

  const auto found = runs();
  ASSERT_EQ(found.size(), 7U);
  const auto owner_bytes = std::filesystem::file_size(folder_.file("sluice-dead/owner.json"));
  EXPECT_EQ(found[0].run, "dead");
  EXPECT_EQ(found[0].directory, folder_.file("sluice-dead"));
  EXPECT_EQ(found[0].condition, StoreCondition::kLeftover);
  EXPECT_EQ(found[0].owner, impatient().self);
  EXPECT_EQ(found[0].bytes, 5100 + owner_bytes);
  EXPECT_EQ(found[1].run, "garbled");
  EXPECT_EQ(found[1].condition, StoreCondition::kUnclaimed);
  EXPECT_EQ(found[1].owner, std::nullopt);
  EXPECT_EQ(found[2].run, "large");
  EXPECT_EQ(found[2].owner, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("sluice-large/lock")))
      << "looks, makes nothing";
  EXPECT_EQ(found[3].run, "live");
  EXPECT_EQ(found[3].condition, StoreCondition::kInUse);
  EXPECT_EQ(found[4].run, "pipe");
  EXPECT_EQ(found[4].condition, StoreCondition::kUnknown);
  EXPECT_THAT(found[4].problem.error().message(), HasSubstr("sluice-pipe/owner.json"));
  EXPECT_EQ(found[5].run, "remote");
  EXPECT_EQ(found[5].condition, StoreCondition::kElsewhere);
  EXPECT_EQ(found[5].owner->pid, 9);
  EXPECT_EQ(found[6].run, "unowned");
  EXPECT_EQ(found[6].condition, StoreCondition::kUnknown);
  // Looking has released every lock.
  EXPECT_OK(take("dead"));
  EXPECT_OK(take("garbled"));
}

// ---- owners of other machines -----------------------------------------------------------------

RunOptions on_another_machine(std::int64_t pid) {
  RunOptions options = impatient(pid);
  options.self.host = "there";
  options.self.boot_id = "b-1";
  options.self.machine_id = "m-1";
  return options;
}

// As on NFS.
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
                testing::AllOf(HasSubstr("process 4711 on host there since"),
                               HasSubstr("rm -r " + folder_.file("sluice-a"))));
    EXPECT_EQ(content(), before);
  }
}

// Whoever has a local drive over the network holds locks that its server does not see.
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

// Everybody takes, removes and looks at one name at once: never two holders, never another error
// than that it is busy.
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

// In a process of its own: takes the run, says so, and waits to be killed.
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

// ---- power loss and faults --------------------------------------------------------------------

class StoreDirectoryOnSimDrive : public testing::Test {
 protected:
  struct Machine {
    Machine() {
      EXPECT_OK(files.make_directories("/nvme"));
      EXPECT_OK(files.sync_directory("/"));
    }
    // As a run leaves it that wrote two files and died.
    void leave_a_dead_run() {
      const auto run = take(1);
      EXPECT_OK(run);
      for (const char* name : {"/state.0", "/state.1"}) {
        EXPECT_OK(aio::write_small_file(*queue, (*run)->path() + name, "state"));
      }
    }
    Result<std::unique_ptr<StoreDirectory>> take(std::int64_t pid) {
      return StoreDirectory::take(*queue, "/nvme", "a", impatient(pid));
    }
    void lose_power(PowerLoss policy, std::uint64_t seed) {
      drive.power_loss(policy, seed);
      loop.run();
      drive.restore_power();
    }
    aio::VirtualLoop loop;
    SimDrive drive{loop, {}};
    FileSystem& files = drive.files();
    std::unique_ptr<IoQueue> queue = make_queue_or_die(drive, {});
  };

  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
  }
  void TearDown() override { log::set_sink({}); }

  static FaultPlan plan(FaultKind fault, std::uint64_t nth, bool persistent) {
    return FaultPlan::of({.fault = fault,
                          .nth = nth,
                          .persistent = persistent,
                          .targets = aio::all_fault_targets()});
  }
};

TEST_F(StoreDirectoryOnSimDrive, CanBeTakenAgainAfterAPowerLossAtAnyOperationOfTaking) {
  for (const bool dead_run : {false, true}) {
    for (const PowerLoss policy : kAllPolicies) {
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        for (std::uint64_t nth = 1;; ++nth) {
          SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                       std::to_string(seed) + ", operation " + std::to_string(nth));
          Machine machine;
          if (dead_run) machine.leave_a_dead_run();
          machine.drive.fail_after_ops(nth, policy, seed);
          const auto cut = machine.take(2);
          const bool was_cut = !machine.drive.powered();
          ASSERT_EQ(cut.ok(), !was_cut);
          machine.lose_power(policy, seed);
          const auto found = find_runs(*machine.queue, "/nvme", impatient());
          ASSERT_OK(found);
          if (cut.ok()) {
            ASSERT_EQ(found->size(), 1U);
            ASSERT_EQ(found->front().owner->pid, 2);
          }
          const auto next = machine.take(3);
          ASSERT_OK(next);
          const auto owner = read_owner(*machine.queue, (*next)->path());
          ASSERT_OK(owner);
          ASSERT_EQ((*owner)->pid, 3);
          ASSERT_EQ(*machine.files.exists("/nvme/sluice-a/state.1"), dead_run);
          if (!was_cut) break;
        }
      }
    }
  }
}

TEST_F(StoreDirectoryOnSimDrive, StaysOursOrGoesAfterAPowerLossAtAnyOperationOfRemoval) {
  int found_again = 0;
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      for (std::uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                     std::to_string(seed) + ", operation " + std::to_string(nth));
        Machine machine;
        machine.leave_a_dead_run();
        const auto run = machine.take(2);
        ASSERT_OK(run);
        machine.drive.fail_after_ops(nth, policy, seed);
        const Status removed = (*run)->remove_all();
        const bool was_cut = !machine.drive.powered();
        ASSERT_EQ(removed.ok(), !was_cut);
        machine.lose_power(policy, seed);
        const auto found = find_runs(*machine.queue, "/nvme", impatient());
        ASSERT_OK(found);
        if (removed.ok()) {
          ASSERT_TRUE(machine.files.list("/nvme")->empty());
        } else if (found->empty() && *machine.files.exists("/nvme/sluice-a")) {
          ASSERT_TRUE(machine.files.list("/nvme/sluice-a")->empty()) << "files nobody would find";
        }
        found_again += found->empty() ? 0 : 1;
        const auto next = machine.take(3);
        ASSERT_OK(next);
        ASSERT_OK((*next)->remove_all());
        ASSERT_TRUE(machine.files.list("/nvme")->empty());
        if (!was_cut) break;
      }
    }
  }
  EXPECT_GT(found_again, 100);
}

TEST_F(StoreDirectoryOnSimDrive, TakingReportsEveryCallThatFailsAndCanBeRepeated) {
  int failed = 0;
  for (const bool dead_run : {false, true}) {
    for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr}) {
      for (const bool persistent : {false, true}) {
        for (std::uint64_t nth = 1;; ++nth) {
          SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth));
          Machine machine;
          if (dead_run) machine.leave_a_dead_run();
          FaultBackend faults(machine.drive, plan(fault, nth, persistent));
          const auto queue = make_queue_or_die(faults, {});
          auto run = StoreDirectory::take(*queue, "/nvme", "a", impatient(2));
          const std::uint64_t injected = faults.injected();
          if (injected == 0) ASSERT_OK(run);
          if (run.ok()) {  // as a retried write may be
            faults.set_plan({});
            ASSERT_EQ(machine.take(3).error().code(), ErrorCode::kBusy);
            ASSERT_EQ((*read_owner(*machine.queue, (*run)->path()))->pid, 2);
            run->reset();
          } else {
            ++failed;
            ASSERT_THAT(run.error().message(), HasSubstr("/nvme"));
          }
          ASSERT_OK(machine.take(3));
          ASSERT_EQ(*machine.files.exists("/nvme/sluice-a/state.1"), dead_run);
          if (injected == 0) break;
        }
      }
    }
  }
  EXPECT_GT(failed, 80);
}

TEST_F(StoreDirectoryOnSimDrive, RemovalReportsEveryCallThatFailsAndCanBeRepeated) {
  int failed = 0;
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEintr}) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth));
        Machine machine;
        machine.leave_a_dead_run();
        FaultBackend faults(machine.drive, {});
        const auto queue = make_queue_or_die(faults, {});
        auto run = StoreDirectory::take(*queue, "/nvme", "a", impatient(2));
        ASSERT_OK(run);
        faults.set_plan(plan(fault, nth, persistent));
        const Status removed = (*run)->remove_all();
        const std::uint64_t injected = faults.injected();
        ASSERT_EQ(removed.ok(), injected == 0);
        if (!removed.ok()) {
          ++failed;
          ASSERT_THAT(removed.error().message(), HasSubstr("/nvme"));
        }
        faults.set_plan({});
        ASSERT_OK((*run)->remove_all());
        machine.lose_power(PowerLoss::kDropUnsynced, 1);
        ASSERT_TRUE(machine.files.list("/nvme")->empty());
        if (injected == 0) break;
      }
    }
  }
  EXPECT_GT(failed, 40);
}

// Between the lock's file and the folder the name is free, and a repeated removal meets the files
// of whoever took it.
TEST_F(StoreDirectoryOnSimDrive, ARepeatedRemovalSparesTheRunThatTookTheNameMeanwhile) {
  Machine machine;
  FaultBackend faults(machine.drive, {});
  const auto queue = make_queue_or_die(faults, {});
  auto first = StoreDirectory::take(*queue, "/nvme", "a", impatient(1));
  ASSERT_OK(first);
  faults.set_plan(FaultPlan::of({.nth = 3, .targets = {FaultTarget::kRemove}}));
  ASSERT_FALSE((*first)->remove_all().ok());
  ASSERT_TRUE(machine.files.list("/nvme/sluice-a")->empty());
  const auto second = machine.take(2);
  ASSERT_OK(second);
  ASSERT_OK((*first)->remove_all());
  first->reset();
  EXPECT_EQ((*read_owner(*machine.queue, "/nvme/sluice-a"))->pid, 2);
  EXPECT_EQ(machine.take(3).error().code(), ErrorCode::kBusy);
}

TEST_F(StoreDirectoryOnSimDrive, LookingReportsEveryCallThatFailsAndHoldsNoLockAfterwards) {
  int failed = 0;
  for (const bool persistent : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth));
      Machine machine;
      machine.leave_a_dead_run();
      FaultBackend faults(machine.drive, plan(FaultKind::kEio, nth, persistent));
      const auto queue = make_queue_or_die(faults, {});
      const auto found = find_runs(*queue, "/nvme", impatient());
      const std::uint64_t injected = faults.injected();
      if (found.ok()) {
        ASSERT_EQ(found->size(), 1U);
        const FoundRun& run = found->front();
        ASSERT_EQ(run.condition == StoreCondition::kUnknown, !run.problem.ok());
        if (run.problem.ok()) {  // as a retried read may be
          ASSERT_EQ(run.condition, StoreCondition::kLeftover);
          ASSERT_EQ(run.owner->pid, 1);
          ASSERT_GT(run.bytes, 10U);
        } else {
          ++failed;
          ASSERT_THAT(run.problem.error().message(), HasSubstr("/nvme/sluice-a"));
        }
      } else {
        ++failed;
        ASSERT_THAT(found.error().message(), HasSubstr("/nvme"));
      }
      ASSERT_OK(machine.take(2));
      if (injected == 0) {
        ASSERT_OK(found);
        ASSERT_OK(found->front().problem);
        break;
      }
    }
  }
  EXPECT_GT(failed, 20);
}

}  // namespace
}  // namespace sluice::swap
