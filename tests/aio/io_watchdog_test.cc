#include "aio/io_watchdog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aio/direct_file.h"
#include "aio/drive_names.h"
#include "aio/fault_backend.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMs = 1'000'000;

// What a watchdog reported.
class Reports {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& message) {
      const std::lock_guard lock(mutex_);
      messages_.push_back(message);
      changed_.notify_all();
    };
  }
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return messages_.size() >= count; });
    return messages_;
  }
  // Until the last one says that the drive is back.
  std::vector<std::string> wait_for_the_end() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return !messages_.empty() && messages_.back().find("has answered") != std::string::npos;
    });
    return messages_;
  }
  std::vector<std::string> all() { return wait_for(0); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> messages_;
};

// A drive that answers the second read late.
class IoWatchdogTest : public testing::Test {
 protected:
  void open(std::int64_t delay_ns) {
    FaultPlan plan =
        FaultPlan::of({.fault = FaultKind::kDelay, .nth = 2, .targets = {FaultTarget::kRead}});
    plan.delay_ns = delay_ns;
    backend_ = make_backend_or_die(BackendKind::kPosix);
    slow_ = std::make_unique<FaultBackend>(*backend_, plan);
    queue_ = make_queue_or_die(*slow_, {.block_bytes = 4096, .queue_depth = 4});
    DirectFile::Options options;
    options.open = {.access = OpenOptions::Access::kReadWrite,
                    .create = OpenOptions::Create::kMustNotExist};
    options.size_bytes = data_.size();
    auto file = DirectFile::open(*queue_, folder_.file("slow"), options);
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = std::move(*file);
    ASSERT_TRUE(queue_->write(*file_, 0, data_).ok());
  }

  TemporaryFolder folder_;
  std::vector<std::byte> data_ = random_bytes(3 * 4096, 1);
  std::unique_ptr<IoBackend> backend_;
  std::unique_ptr<FaultBackend> slow_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<DirectFile> file_;
};

TEST_F(IoWatchdogTest, NamesWhatHangsWhileItHangsAndSaysWhenItIsBack) {
  open(1000 * kMs);
  Reports reports;
  const IoWatchdog watchdog({queue_.get()}, {.limit_ns = 100 * kMs, .report = reports.sink()});
  std::vector<std::byte> back(data_.size());
  IoRequest request;
  request.prepare_read(*file_, 0, back);
  queue_->submit(request);
  const std::string first = reports.wait_for(1).at(0);
  EXPECT_THAT(first, AllOf(HasSubstr("not answered for 0."), HasSubstr("read of 4096 bytes"),
                           HasSubstr("at offset 4096 of " + folder_.file("slow")),
                           HasSubstr("mounted at /"), HasSubstr("dmesg")));
  EXPECT_TRUE(queue_->wait(request).ok());
  EXPECT_EQ(back, data_);
  const auto messages = reports.wait_for_the_end();
  ASSERT_GE(messages.size(), 3U);
  EXPECT_THAT(messages[1], HasSubstr("not answered"));  // twice as long
  EXPECT_THAT(messages.back(), AllOf(HasSubstr("has answered"), HasSubstr(folder_.file("slow"))));
  // The wait at least doubles between messages: 0.1, 0.2, 0.4, 0.8 s, and the end.
  EXPECT_LE(messages.size(), 6U);
}

TEST_F(IoWatchdogTest, IsSilentWhileTheDriveAnswers) {
  open(1 * kMs);
  Reports reports;
  {
    const IoWatchdog watchdog({queue_.get()}, {.limit_ns = 20'000 * kMs, .report = reports.sink()});
    std::vector<std::byte> back(data_.size());
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(queue_->read(*file_, 0, back).ok());
  }
  EXPECT_THAT(reports.all(), IsEmpty());
}

TEST_F(IoWatchdogTest, WatchesAQueueForAsLongAsItIsAskedTo) {
  open(1000 * kMs);
  Reports reports;
  IoWatchdog watchdog({.report = reports.sink()});
  std::vector<std::byte> back(data_.size());
  IoRequest request;
  request.prepare_read(*file_, 0, back);
  {
    const auto watch = watchdog.watch(*queue_);
    watchdog.set_limit_s(0.1);
    queue_->submit(request);
    EXPECT_THAT(reports.wait_for(1).at(0), HasSubstr(folder_.file("slow")));
    EXPECT_TRUE(queue_->wait(request).ok());
    EXPECT_THAT(reports.wait_for_the_end().back(), HasSubstr("has answered after "));
  }
  const std::size_t before = reports.all().size();
  file_.reset();
  queue_.reset();  // is looked at no more
  EXPECT_EQ(reports.all().size(), before);
}

bool calls_are_shown() { return std::ifstream("/proc/thread-self/syscall").good(); }
constexpr const char* kNotShown = "this kernel does not show the calls that threads are in";

// A thread that waits in a file call of its own: a pipe's two ends wait for each other at open.
TEST(IoWatchdogCalls, NamesWhatAThreadIsBlockedInAndSaysWhenItIsBack) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  const std::string pipe = folder.file("a pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::symlink(folder.path().c_str(), folder.file("link").c_str()), 0);
  Reports reports;
  const IoWatchdog watchdog({.limit_ns = 100 * kMs, .file_calls = true, .report = reports.sink()});
  std::string line;
  std::thread reader([&] { std::getline(std::ifstream(folder.file("link") + "/a pipe"), line); });
  const auto messages = reports.wait_for(2);
  std::ofstream(pipe) << "now\n";
  reader.join();
  EXPECT_EQ(line, "now");
  ASSERT_GE(messages.size(), 2U);
  EXPECT_THAT(messages[0], AllOf(HasSubstr("has not come back for "),
                                 HasSubstr("open of " + folder.file("link") + "/a pipe on "),
                                 HasSubstr("mounted at /")));
  EXPECT_THAT(messages[1], HasSubstr("has not come back"));  // twice as long
  EXPECT_THAT(reports.wait_for_the_end().back(),
              AllOf(HasSubstr("has answered after "), HasSubstr("open of ")));
}

// By a clock of the test's: since when the thread has been in the call that it is in.
std::int64_t blocked_since(BlockedCalls& calls, pid_t thread, std::int64_t now_ns) {
  while (true) {
    const auto& blocked = calls.look(now_ns);
    const auto found = blocked.find(thread);
    if (found != blocked.end()) return found->second.since_ns;
    std::this_thread::yield();
  }
}

TEST(BlockedCalls, TakesEqualConsecutiveCallsForSeveral) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int both = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(both, 0);
  std::atomic<pid_t> thread{0};
  std::atomic<int> bytes{0};
  std::thread reader([&] {
    thread = ::gettid();
    char byte = 0;
    while (::read(both, &byte, 1) == 1 && byte != 'e') ++bytes;
  });
  while (thread == 0) std::this_thread::yield();
  BlockedCalls calls;
  EXPECT_EQ(blocked_since(calls, thread, 10), 10);
  EXPECT_EQ(blocked_since(calls, thread, 20), 10);
  EXPECT_EQ(::write(both, "x", 1), 1);
  while (bytes == 0) std::this_thread::yield();
  EXPECT_EQ(blocked_since(calls, thread, 30), 30);
  const auto call = BlockedCalls::describe(thread, calls.look(40).at(thread));
  EXPECT_EQ(call ? call->text : "", "read of 1 bytes of " + pipe);
  EXPECT_EQ(::write(both, "e", 1), 1);
  reader.join();
  ::close(both);
  EXPECT_EQ(calls.look(50).count(thread), 0U);
}

TEST(DescribeDrive, FollowsSymbolicLinks) {
  const TemporaryFolder folder;
  ASSERT_EQ(::symlink("/proc", folder.file("link").c_str()), 0);
  ASSERT_EQ(::symlink("link/self", folder.file("second").c_str()), 0);
  ASSERT_EQ(::symlink("loop", folder.file("loop").c_str()), 0);
  EXPECT_THAT(describe_drive(folder.file("second/../status")), HasSubstr("mounted at /proc)"));
  EXPECT_EQ(describe_drive(folder.file("loop/x")), describe_drive(folder.path()));
}

TEST(DescribeDrive, NamesDeviceFileSystemAndMountPoint) {
  EXPECT_THAT(describe_drive("/proc/self/status"),
              AllOf(HasSubstr("(proc, "), HasSubstr("mounted at /proc)")));
  EXPECT_THAT(describe_drive("/no/such/file"), HasSubstr("mounted at /)"));
}

}  // namespace
}  // namespace sluice::aio
