#include "aio/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kMax = 1 * kMiB;
constexpr PowerLoss kAllPolicies[] = {PowerLoss::kOrdered, PowerLoss::kAny,
                                      PowerLoss::kDropUnsynced, PowerLoss::kKeepAll,
                                      PowerLoss::kTearLast};

// Text of this length that differs in every sector between seeds.
std::string text(std::size_t length, std::uint64_t seed) {
  const auto bytes = random_bytes(length, seed);
  std::string result(length, '\0');
  std::transform(bytes.begin(), bytes.end(), result.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  return result;
}

// ---- real files -------------------------------------------------------------------------------

class SmallFile : public EveryBackend {
 protected:
  static std::string as_others_see_it(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("manifest");
  const std::unique_ptr<IoBackend> backend_ = backend();
  const std::unique_ptr<IoQueue> queue_ = make_queue_or_die(*backend_, {.block_bytes = 8192});
};

TEST_P(SmallFile, HoldsWhatWasWrittenLastWhateverItsSize) {
  std::uint64_t seed = 0;
  for (const std::size_t size : {5, 0, 4096, 1, 100'000, 4097, 4095, 0, 0, 8192, 3}) {
    SCOPED_TRACE(std::to_string(size) + " bytes");
    const std::string content = text(size, ++seed);
    ASSERT_OK(write_small_file(*queue_, path_, content));
    EXPECT_EQ(as_others_see_it(path_), content);
    const auto read = read_small_file(*queue_, path_, kMax);
    ASSERT_OK(read);
    EXPECT_EQ(*read, content);
    EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  }
}

TEST_P(SmallFile, ReplacesWhatAnInterruptedWriteLeft) {
  for (const std::size_t left : {0, 10, 4096, 50'000}) {
    for (const std::size_t size : {0, 10, 9000}) {
      SCOPED_TRACE(std::to_string(left) + " bytes left, " + std::to_string(size) + " written");
      std::ofstream(path_ + ".new", std::ios::binary) << text(left, 1);
      ASSERT_OK(write_small_file(*queue_, path_, text(size, 2)));
      EXPECT_EQ(as_others_see_it(path_), text(size, 2));
      EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
    }
  }
}

TEST_P(SmallFile, IsNeverWrittenThroughALinkOrAnotherNameOfAFile) {
  const std::string theirs = folder_.file("theirs");
  for (const std::string& content : {std::string(), std::string("text"), text(9000, 3)}) {
    std::ofstream(theirs) << "precious";
    for (const bool is_hard : {false, true}) {
      for (const std::string& name : {path_ + ".new", path_}) {
        std::filesystem::remove(name);
        if (is_hard)
          std::filesystem::create_hard_link(theirs, name);
        else
          std::filesystem::create_symlink(theirs, name);
        ASSERT_OK(write_small_file(*queue_, path_, content));
        EXPECT_EQ(as_others_see_it(theirs), "precious");
        EXPECT_EQ(as_others_see_it(path_), content);
        EXPECT_FALSE(std::filesystem::is_symlink(path_));
      }
    }
    std::filesystem::create_symlink(folder_.file("nowhere"), path_ + ".new");
    ASSERT_OK(write_small_file(*queue_, path_, content));
    EXPECT_FALSE(std::filesystem::exists(folder_.file("nowhere")));
  }
}

TEST_P(SmallFile, IsNotReadWhenMissingOrLargerThanItMayBe) {
  EXPECT_EQ(read_small_file(*queue_, path_, kMax).error().code(), ErrorCode::kNotFound);
  ASSERT_OK(write_small_file(*queue_, path_, text(5000, 1)));
  EXPECT_OK(read_small_file(*queue_, path_, 5000));
  const auto larger = read_small_file(*queue_, path_, 4999);
  ASSERT_FALSE(larger.ok());
  EXPECT_EQ(larger.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(larger.error().message(),
            path_ + " has 5000 bytes, more than the 4999 that such a file may have");
}

TEST_P(SmallFile, SaysWhatFailedWhereTheFolderIsMissing) {
  const Status status = write_small_file(*queue_, folder_.file("no/manifest"), "text");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(status.error().message(), HasSubstr(folder_.file("no/manifest")));
}

TEST_P(SmallFile, IsRemovedOnceOrTwiceAndSoIsAnEmptyFolder) {
  FileSystem& files = backend_->files();
  ASSERT_OK(write_small_file(*queue_, path_, "text"));
  ASSERT_OK(files.make_directories(folder_.file("empty")));
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(remove_durably(files, path_));
    EXPECT_OK(remove_durably(files, folder_.file("empty")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  std::ofstream(folder_.file("file")) << "text";
  EXPECT_FALSE(remove_durably(files, folder_.path()).ok());
}

SLUICE_TEST_EVERY_BACKEND(SmallFile);

// ---- power loss and faults --------------------------------------------------------------------

// The file's content before, and the content written then.
struct Change {
  std::optional<std::string> before;
  std::string after;
};

std::vector<Change> changes() {
  return {{text(5000, 1), text(7000, 2)},
          {text(9000, 1), text(10, 2)},
          {std::nullopt, text(1, 2)},
          {text(4096, 1), ""},
          {"", text(4096, 2)},
          {std::nullopt, ""}};
}

// A simulated drive with the file's previous content.
class SmallFileOnSimDrive : public testing::Test {
 protected:
  struct Machine {
    explicit Machine(const Change& change) {
      EXPECT_OK(drive.files().make_directories("/d"));
      EXPECT_OK(drive.files().sync_directory("/"));
      if (change.before) EXPECT_OK(write_small_file(*queue, "/d/f", *change.before));
    }
    std::optional<std::string> content() {
      const auto read = read_small_file(*queue, "/d/f", kMax);
      if (read.ok()) return *read;
      EXPECT_EQ(read.error().code(), ErrorCode::kNotFound) << read.error().message();
      return std::nullopt;
    }
    void lose_power(PowerLoss policy, std::uint64_t seed) {
      drive.power_loss(policy, seed);
      loop.run();
      drive.restore_power();
    }
    VirtualLoop loop;
    SimDrive drive{loop, {}};
    std::unique_ptr<IoQueue> queue = make_queue_or_die(drive, {.block_bytes = 4096});
  };

  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});  // thousands of warnings about retries
  }
  void TearDown() override { log::set_sink({}); }
};

TEST_F(SmallFileOnSimDrive, IsWholeOldOrWholeNewAfterAPowerLossAtAnyOperation) {
  int kept_old = 0;
  int got_new = 0;
  for (const Change& change : changes()) {
    for (const PowerLoss policy : kAllPolicies) {
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        for (std::uint64_t nth = 1;; ++nth) {
          SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                       std::to_string(seed) + ", operation " + std::to_string(nth));
          Machine machine(change);
          machine.drive.fail_after_ops(nth, policy, seed);
          const Status written = write_small_file(*machine.queue, "/d/f", change.after);
          const bool was_cut = !machine.drive.powered();
          ASSERT_EQ(written.ok(), !was_cut);
          machine.lose_power(policy, seed);
          const auto content = machine.content();
          if (written.ok()) {
            ASSERT_EQ(content, change.after);
          } else {
            ASSERT_TRUE(content == change.before || content == change.after);
            ++(content == change.after ? got_new : kept_old);
          }
          // The remains of the power loss must not hinder the next write.
          ASSERT_OK(write_small_file(*machine.queue, "/d/f", "next"));
          machine.lose_power(policy, seed + 1);
          ASSERT_EQ(machine.content(), "next");
          ASSERT_FALSE(*machine.drive.files().exists("/d/f.new"));
          if (!was_cut) break;
        }
      }
    }
  }
  EXPECT_GT(kept_old, 1000);
  EXPECT_GT(got_new, 100);
}

TEST_F(SmallFileOnSimDrive, SurvivesAPowerLossInEachOfTwoWritesInTurn) {
  const Change change{text(5000, 1), text(7000, 2)};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (std::uint64_t first = 1; first <= 7; ++first) {
      for (std::uint64_t second = 1; second <= 8; ++second) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", operations " + std::to_string(first) +
                     " and " + std::to_string(second));
        Machine machine(change);
        machine.drive.fail_after_ops(first, PowerLoss::kAny, seed);
        static_cast<void>(write_small_file(*machine.queue, "/d/f", change.after));
        machine.lose_power(PowerLoss::kAny, seed);
        const auto between = machine.content();
        ASSERT_TRUE(between == change.before || between == change.after);
        machine.drive.fail_after_ops(second, PowerLoss::kAny, seed + 100);
        const Status written = write_small_file(*machine.queue, "/d/f", "third");
        machine.lose_power(PowerLoss::kAny, seed + 200);
        const auto content = machine.content();
        ASSERT_TRUE(content == "third" || (!written.ok() && content == between));
      }
    }
  }
}

TEST_F(SmallFileOnSimDrive, IsWholeOldOrWholeNewWhateverCallFails) {
  int failed = 0;
  int done_all_the_same = 0;
  for (const Change& change : changes()) {
    for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
      for (const bool persistent : {false, true}) {
        for (std::uint64_t nth = 1;; ++nth) {
          const auto fault = static_cast<FaultKind>(kind);
          SCOPED_TRACE(std::string(to_string(fault)) + " at call " + std::to_string(nth) +
                       (persistent ? " and from there on" : ""));
          Machine machine(change);
          FaultBackend faults(machine.drive, FaultPlan::of({.fault = fault,
                                                            .nth = nth,
                                                            .persistent = persistent,
                                                            .targets = all_fault_targets()}));
          const auto queue = make_queue_or_die(faults, {.block_bytes = 4096});
          const Status written = write_small_file(*queue, "/d/f", change.after);
          const std::uint64_t injected = faults.injected();
          const auto content = machine.content();
          ASSERT_TRUE(content == change.after || (!written.ok() && content == change.before));
          if (injected == 0) ASSERT_OK(written);
          if (written.ok()) {
            ++done_all_the_same;
          } else {
            ++failed;
            EXPECT_THAT(written.error().message(), HasSubstr("/d"));
          }
          machine.lose_power(PowerLoss::kDropUnsynced, 1);
          const auto durable = machine.content();
          ASSERT_TRUE(durable == change.after || (!written.ok() && durable == change.before));
          ASSERT_OK(write_small_file(*machine.queue, "/d/f", "next"));
          ASSERT_EQ(machine.content(), "next");
          if (injected == 0) break;
        }
      }
    }
  }
  EXPECT_GT(failed, 300);
  EXPECT_GT(done_all_the_same, 100);
}

TEST_F(SmallFileOnSimDrive, IsReadRightOrNotAtAllWhateverCallFails) {
  const Change change{text(9001, 1), ""};
  int failed = 0;
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; ++nth) {
        Machine machine(change);
        FaultBackend faults(machine.drive, FaultPlan::of({.fault = static_cast<FaultKind>(kind),
                                                          .nth = nth,
                                                          .persistent = persistent,
                                                          .targets = all_fault_targets()}));
        const auto queue = make_queue_or_die(faults, {.block_bytes = 4096});
        const auto read = read_small_file(*queue, "/d/f", kMax);
        if (read.ok()) {
          ASSERT_EQ(*read, *change.before);
        } else {
          ++failed;
        }
        if (faults.injected() == 0) {
          ASSERT_OK(read);
          break;
        }
      }
    }
  }
  EXPECT_GT(failed, 10);
}

TEST_F(SmallFileOnSimDrive, IsGoneForGoodOnceItsRemovalIsOk) {
  const Change change{text(5000, 1), ""};
  for (const PowerLoss policy : kAllPolicies) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      for (std::uint64_t nth = 1; nth <= 3; ++nth) {
        Machine machine(change);
        machine.drive.fail_after_ops(nth, policy, seed);
        const Status removed = remove_durably(machine.drive.files(), "/d/f");
        ASSERT_EQ(removed.ok(), nth == 3);
        machine.lose_power(policy, seed);
        const auto content = machine.content();
        ASSERT_TRUE(!content || (!removed.ok() && content == change.before));
      }
    }
  }
}

// A removal whose sync failed is not durable yet; trying again must make it durable.
TEST_F(SmallFileOnSimDrive, ARepeatedRemovalIsDurable) {
  Machine machine({text(10, 1), ""});
  FaultBackend faults(machine.drive, FaultPlan::of({.targets = {FaultTarget::kSyncDirectory}}));
  EXPECT_FALSE(remove_durably(faults.files(), "/d/f").ok());
  EXPECT_OK(remove_durably(faults.files(), "/d/f"));
  machine.lose_power(PowerLoss::kDropUnsynced, 1);
  EXPECT_EQ(machine.content(), std::nullopt);
}

}  // namespace
}  // namespace sluice::aio
