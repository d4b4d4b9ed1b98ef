#include "aio/io_watchdog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/openat2.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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

// The reports of a watchdog.
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
  // Waits for the report that says that the drive answers again.
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
  queue_.reset();  // no longer watched
  EXPECT_EQ(reports.all().size(), before);
}

bool calls_are_shown() { return std::ifstream("/proc/thread-self/syscall").good(); }
constexpr const char* kNotShown = "this kernel does not show the calls that threads are in";

// A thread that waits in a file call: each end of a pipe waits for the other at open.
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
  EXPECT_THAT(messages[0], AllOf(HasSubstr("has not returned for "),
                                 HasSubstr("open of " + folder.file("link") + "/a pipe on "),
                                 HasSubstr("mounted at /")));
  EXPECT_THAT(messages[1], HasSubstr("has not returned"));  // twice as long
  EXPECT_THAT(reports.wait_for_the_end().back(),
              AllOf(HasSubstr("has answered after "), HasSubstr("open of ")));
}

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool sleeps(pid_t thread) {
  std::string line;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/syscall"), line);
  return line != "running";
}

// By the test's own clock: since when the thread has been in its current call. -1: in no call.
std::int64_t blocked_since(BlockedCalls& calls, pid_t thread, std::int64_t now_ns) {
  const std::map<pid_t, BlockedCalls::Blocked>* blocked = nullptr;
  const bool found = eventually([&] {
    if (!sleeps(thread)) return false;
    blocked = &calls.look(now_ns);
    return blocked->count(thread) == 1;
  });
  return found ? blocked->at(thread).since_ns : -1;
}

std::string described(BlockedCalls& calls, pid_t thread) {
  const auto call = BlockedCalls::describe(thread, calls.look(0).at(thread));
  return call ? call->text : "";
}

// A thread for calls that wait.
class Caller {
 public:
  explicit Caller(std::function<void()> call)
      : thread_([this, call = std::move(call)] {
          id_ = ::gettid();
          call();
        }) {
    eventually([this] { return id_ != 0; });
  }
  void join() { thread_.join(); }
  pid_t id() const { return id_; }

 private:
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

// The two ends of a named pipe.
class NamedPipe {
 public:
  explicit NamedPipe(std::string path) : path_(std::move(path)) {
    if (::mkfifo(path_.c_str(), 0600) != 0) throw std::runtime_error("no pipe can be made");
  }
  ~NamedPipe() {
    if (both_ >= 0) ::close(both_);
  }
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;

  const std::string& path() const { return path_; }
  // A thread that waits for the other end to be opened continues.
  int open() {
    if (both_ < 0) both_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    return both_;
  }
  bool write(char byte) const { return ::write(both_, &byte, 1) == 1; }

 private:
  std::string path_;
  int both_ = -1;
};

TEST(BlockedCalls, TakesEqualConsecutiveCallsForSeveral) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  NamedPipe pipe(folder.file("pipe"));
  const int both = pipe.open();
  ASSERT_GE(both, 0);
  std::atomic<int> bytes{0};
  Caller reader([&] {
    char byte = 0;
    while (::read(both, &byte, 1) == 1 && byte != 'e') ++bytes;
  });
  BlockedCalls calls;
  EXPECT_EQ(blocked_since(calls, reader.id(), 10), 10);
  EXPECT_EQ(blocked_since(calls, reader.id(), 20), 10);
  EXPECT_TRUE(pipe.write('x'));
  EXPECT_TRUE(eventually([&] { return bytes == 1; }));
  EXPECT_EQ(blocked_since(calls, reader.id(), 30), 30);
  EXPECT_EQ(described(calls, reader.id()), "read of 1 bytes of " + pipe.path());
  EXPECT_TRUE(pipe.write('e'));
  reader.join();
  EXPECT_EQ(calls.look(50).count(reader.id()), 0U);
}

// Like a call on a network file system that sends its request again and again: the thread wakes,
// works for a moment and sleeps.
TEST(BlockedCalls, TakesACallForOneHoweverOftenItsThreadWakes) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  constexpr std::size_t kBytes = 512 * kKiB;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const std::vector<char> data(kBytes);
  Caller writer([&] { EXPECT_EQ(::write(ends[1], data.data(), kBytes), ssize_t{kBytes}); });
  BlockedCalls calls;
  EXPECT_EQ(blocked_since(calls, writer.id(), 10), 10);
  std::vector<char> part(4096);
  std::size_t looks = 0;
  std::size_t the_same = 0;
  for (std::size_t drained = 0; drained < kBytes;) {
    const ssize_t got = ::read(ends[0], part.data(), part.size());
    ASSERT_GT(got, 0);
    drained += static_cast<std::size_t>(got);
    if (drained > kBytes / 2) continue;  // later the pipe may have room for the rest
    const auto& blocked = calls.look(20);
    const auto found = blocked.find(writer.id());
    ++looks;
    if (found != blocked.end() && found->second.since_ns == 10) ++the_same;
  }
  EXPECT_EQ(the_same, looks);
  writer.join();
  for (const int end : ends) ::close(end);
}

// How many times the thread has gone to sleep.
std::uint64_t sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  std::string word;
  while (status >> word) {
    std::uint64_t count = 0;
    if (word == "voluntary_ctxt_switches:" && status >> count) return count;
  }
  return 0;
}

TEST(BlockedCalls, KnowsACallWithAPathByThePathsText) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  NamedPipe first(folder.file("first"));
  NamedPipe other(folder.file("other"));
  struct sigaction take {};
  struct sigaction before {};
  take.sa_handler = [](int) {};
  take.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &take, &before), 0);
  std::string path = first.path();
  std::atomic<int> opened{0};
  Caller reader([&] {
    for (const NamedPipe* pipe : {&first, &other}) {
      path.replace(0, std::string::npos, pipe->path());  // equally long, so at the same address
      // All arguments are equal. A sanitizer's open() would hold signals back.
      const long file =
          ::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0, 0, 0);
      ::close(static_cast<int>(file));
      ++opened;
    }
  });
  BlockedCalls calls;
  EXPECT_EQ(blocked_since(calls, reader.id(), 10), 10);
  const std::uint64_t sleeps = sleeps_of(reader.id());
  EXPECT_GT(sleeps, 0U);
  EXPECT_EQ(::syscall(SYS_tgkill, ::getpid(), reader.id(), SIGUSR1), 0);
  EXPECT_TRUE(eventually([&] { return sleeps_of(reader.id()) > sleeps; }));  // the call continues
  EXPECT_EQ(blocked_since(calls, reader.id(), 20), 10);
  EXPECT_GE(first.open(), 0);
  EXPECT_TRUE(eventually([&] { return opened == 1; }));
  EXPECT_EQ(blocked_since(calls, reader.id(), 30), 30);
  EXPECT_EQ(described(calls, reader.id()), "open of " + other.path());
  EXPECT_GE(other.open(), 0);
  reader.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(BlockedCalls, NamesBothFilesOfACopy) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  NamedPipe pipe(folder.file("pipe"));
  const int both = pipe.open();
  ASSERT_GE(both, 0);
  const std::string path = folder.file("source");
  std::ofstream(path) << "12345";
  const int source = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(source, 0);
  const int bytes = ::fcntl(both, F_GETPIPE_SZ);
  std::vector<char> all(static_cast<std::size_t>(bytes));
  ASSERT_EQ(::write(both, all.data(), all.size()), bytes);  // full, so the copy waits
  Caller copier([&] { EXPECT_EQ(::sendfile(both, source, nullptr, 5), 5); });
  BlockedCalls calls;
  EXPECT_EQ(blocked_since(calls, copier.id(), 10), 10);
  EXPECT_EQ(described(calls, copier.id()), "copy of 5 bytes of " + path + " to " + pipe.path());
  EXPECT_EQ(::read(both, all.data(), all.size()), bytes);
  copier.join();
  ::close(source);
}

TEST(BlockedCalls, KnowsTheNewerFormsOfOpenAndRead) {
  if (!calls_are_shown()) GTEST_SKIP() << kNotShown;
  const TemporaryFolder folder;
  NamedPipe pipe(folder.file("pipe"));
  BlockedCalls calls;
#ifdef SYS_openat2
  const open_how how{.flags = O_RDONLY | O_CLOEXEC, .mode = 0, .resolve = 0};
  const auto open = [&](const char* path) {
    return static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
  };
  if (const int root = open("/"); root >= 0) {
    ::close(root);
    Caller opener([&] { ::close(open(pipe.path().c_str())); });
    EXPECT_EQ(blocked_since(calls, opener.id(), 10), 10);
    EXPECT_EQ(described(calls, opener.id()), "open of " + pipe.path());
    EXPECT_GE(pipe.open(), 0);
    opener.join();
  }
#endif
  const int both = pipe.open();
  ASSERT_GE(both, 0);
  Caller reader([&] {
    char byte = 0;
    const iovec place{&byte, 1};
    EXPECT_EQ(::preadv2(both, &place, 1, -1, 0), 1);
  });
  EXPECT_EQ(blocked_since(calls, reader.id(), 10), 10);
  EXPECT_EQ(described(calls, reader.id()), "read of " + pipe.path());
  EXPECT_TRUE(pipe.write('x'));
  reader.join();
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
