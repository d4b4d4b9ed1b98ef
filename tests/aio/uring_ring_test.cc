#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "aio/direct_file.h"
#include "aio/retry_policy.h"
#include "aio/uring_backend.h"
#include "tests/aio/backends_under_test.h"
#include "tests/aio/forbid_syscall.h"

namespace sluice::aio {
namespace {

std::size_t count_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

struct Counting : IoOp {
  std::atomic<int>* ended = nullptr;
  std::int64_t outcome = 1;
};
void count(IoOp& op, std::int64_t result) noexcept {
  auto& counting = static_cast<Counting&>(op);
  counting.outcome = result;
  ++*counting.ended;
}

TEST(Uring, RunsMoreOpsThanTheRingHasRoomForFromSeveralThreads) {
  auto backend = UringBackend::create({.threads = 2, .queue_depth = 4});
  ASSERT_OK(backend);
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kOps = 500;
  std::atomic<int> ended{0};
  std::vector<Counting> ops(kThreads * kOps);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kOps; ++i) {
        Counting& op = ops[t * kOps + i];
        op.kind = IoKind::kNop;
        op.on_done = count;
        op.ended = &ended;
        if (i % 3 == 0) op.delay_ns = static_cast<std::int64_t>(i) * 1000;
        IoOp* const pointer = &op;
        (*backend)->submit({&pointer, 1});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  while (ended < static_cast<int>(kThreads * kOps)) std::this_thread::yield();
  for (const auto& op : ops) EXPECT_EQ(op.outcome, 0);
}

TEST(Uring, StartsADelayedOpNoEarlierThanAsked) {
  auto backend = UringBackend::create({});
  ASSERT_OK(backend);
  std::atomic<int> ended{0};
  Counting op;
  op.on_done = count;
  op.ended = &ended;
  op.delay_ns = 30'000'000;
  IoOp* const pointer = &op;
  const std::int64_t begin_ns = (*backend)->clock().now_ns();
  (*backend)->submit({&pointer, 1});
  while (ended == 0) std::this_thread::yield();
  EXPECT_GE((*backend)->clock().now_ns() - begin_ns, 30'000'000);
}

TEST(Uring, LeaksNoDescriptorThreadOrSlot) {
  const std::size_t before = count_descriptors();
  TemporaryFolder folder;
  for (int round = 0; round < 5; ++round) {
    auto backend = UringBackend::create({.threads = 3});
    ASSERT_OK(backend);
    auto queue = make_queue_or_die(**backend, {});
    // Three times the size of the file table: slots are reused when files close.
    for (int i = 0; i < 3 * UringBackend::kFileSlots; ++i) {
      DirectFile::Options options;
      options.open = {.access = OpenOptions::Access::kReadWrite,
                      .create = OpenOptions::Create::kAnonymous};
      options.size_bytes = 4096;
      const auto file = DirectFile::open(*queue, folder.path(), options);
      ASSERT_OK(file);
      ASSERT_GE((*file)->file().backend_slot, 0) << "file " << i << " was not registered";
    }
  }
  EXPECT_EQ(count_descriptors(), before);
}

TEST(Uring, GivesTheSameBytesThroughRegisteredAndUnregisteredMemory) {
  auto backend = UringBackend::create({.threads = 2});
  ASSERT_OK(backend);
  auto queue = make_queue_or_die(**backend, {.block_bytes = 64 * kKiB});
  TemporaryFolder folder;
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kAnonymous};
  options.size_bytes = 4 * kMiB;
  const auto file = DirectFile::open(*queue, folder.path(), options);
  ASSERT_OK(file);
  const auto expected = random_bytes(options.size_bytes, 3);
  auto written = PageMemory::map(options.size_bytes, true);
  auto read = PageMemory::map(options.size_bytes, true);
  ASSERT_OK(written);
  ASSERT_OK(read);
  std::copy(expected.begin(), expected.end(), written->data());
  ASSERT_TRUE((*backend)->attach_memory(written->bytes()));
  // Registers only a part of the target: blocks inside it use it; the others, and one across its
  // edge, do not.
  ASSERT_TRUE((*backend)->attach_memory(read->bytes().subspan(kMiB, kMiB + 32 * kKiB)));
  ASSERT_OK(queue->write(**file, 0, written->bytes()));
  ASSERT_OK(queue->read(**file, 0, read->bytes()));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read->data()));
  (*backend)->detach_memory(read->bytes());
  (*backend)->detach_memory(written->bytes());
  ASSERT_OK(queue->read(**file, 0, read->bytes()));
}

// Both files have slot 0 of their own backend's table.
TEST(Uring, DoesNotTakeAnotherBackendsSlotForItsOwn) {
  auto first = UringBackend::create({});
  auto second = UringBackend::create({});
  ASSERT_OK(first);
  ASSERT_OK(second);
  auto first_queue = make_queue_or_die(**first, {});
  auto second_queue = make_queue_or_die(**second, {});
  TemporaryFolder folder;
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kMustNotExist};
  options.size_bytes = 8192;
  const auto mine = DirectFile::open(*first_queue, folder.file("mine"), options);
  const auto other = DirectFile::open(*second_queue, folder.file("other"), options);
  ASSERT_OK(mine);
  ASSERT_OK(other);
  const auto data = random_bytes(8192, 9);
  ASSERT_OK(second_queue->write(**mine, 0, data));
  std::vector<std::byte> back(8192);
  ASSERT_OK(first_queue->read(**mine, 0, back));
  EXPECT_EQ(back, data);
  ASSERT_OK(second_queue->read(**other, 0, back));
  EXPECT_EQ(back, std::vector<std::byte>(8192));
}

TEST(Uring, NamesTheRangeOfItsOptions) {
  for (const auto& options :
       {UringBackend::Options{.threads = 0}, UringBackend::Options{.threads = 65},
        UringBackend::Options{.queue_depth = 0}, UringBackend::Options{.queue_depth = 4097}}) {
    const auto backend = UringBackend::create(options);
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.error().code(), ErrorCode::kInvalidArgument);
  }
}

// The file system opens no pipes.
class Pipe : public File {
 public:
  explicit Pipe(const std::string& path)
      : File(path, 1, 1), descriptor_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}
  ~Pipe() override { ::close(descriptor_); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  Result<std::uint64_t> size_bytes() const override { return std::uint64_t{0}; }
  Status allocate(std::uint64_t /*size_bytes*/) override { return {}; }
  Status truncate(std::uint64_t /*size_bytes*/) override { return {}; }
  int descriptor() const override { return descriptor_; }

 private:
  int descriptor_;
};

// Exits with 0, or with the number of the failed check. The parent removes `folder`.
void break_a_ring_in_use(const TemporaryFolder& folder) {
  ::alarm(60);  // fail instead of hanging
  const auto run = [](UringBackend& backend, Counting& op) {
    IoOp* const pointer = &op;
    backend.submit({&pointer, 1});
  };
  auto backend = UringBackend::create({});
  if (!backend.ok()) _exit(10);
  auto queue = make_queue_or_die(**backend, {.block_bytes = 4096, .queue_depth = 4});
  std::atomic<int> ended{0};
  const auto nop = [&] {
    Counting op;
    op.on_done = count;
    op.ended = &ended;
    const int before = ended;
    run(**backend, op);
    while (ended == before) std::this_thread::yield();
    return op.outcome;
  };
  // A read that waits in the kernel until the pipe has data.
  const std::string pipe = folder.file("pipe");
  if (::mkfifo(pipe.c_str(), 0600) != 0) _exit(11);
  Pipe file(pipe);
  if (file.descriptor() < 0) _exit(12);
  std::array<std::byte, 16> read{};
  std::atomic<int> reads_ended{0};
  Counting taken;
  taken.kind = IoKind::kRead;
  taken.file = &file;
  taken.data = read.data();
  taken.length_bytes = read.size();
  taken.on_done = count;
  taken.ended = &reads_ended;
  run(**backend, taken);
  if (nop() != 0) _exit(13);  // so the read before it is with the kernel

  if (!forbid_syscall(SYS_io_uring_enter, EPERM)) _exit(14);
  if (nop() != -ENOTRECOVERABLE) _exit(15);
  const auto target = DirectFile::open(*queue, folder.file("data"),
                                       {.open = {.access = OpenOptions::Access::kReadWrite,
                                                 .create = OpenOptions::Create::kMustNotExist},
                                        .size_bytes = 1 << 20});
  if (!target.ok()) _exit(16);
  const Status written = queue->write(**target, 0, std::vector<std::byte>(1 << 20));
  if (written.ok() || written.error().message().find("io_uring stopped") == std::string::npos) {
    _exit(17);
  }
  if (reads_ended != 0) _exit(18);  // its memory still belongs to the kernel
  const std::vector<std::byte> bytes = random_bytes(read.size(), 5);
  if (::write(file.descriptor(), bytes.data(), bytes.size()) != 16) _exit(19);
  while (reads_ended == 0) std::this_thread::yield();
  if (taken.outcome != 16 || !std::equal(read.begin(), read.end(), bytes.begin())) _exit(20);
  queue.reset();
  backend->reset();
  _exit(0);
}

TEST(Uring, FailsWhatTheKernelHasNotTakenOnceItRefusesToBeEntered) {
  const TemporaryFolder folder;
  EXPECT_EXIT(break_a_ring_in_use(folder), testing::ExitedWithCode(0), "io_uring_enter failed");
}

struct OnRing : Counting {
  std::atomic<pid_t> thread{0};
};

// Stops the process more often than io_uring_enter may fail; the parent lets it continue. Exits
// with 0, or with the number of the failed check.
void stop_while_a_ring_is_idle() {
  ::alarm(60);  // fail instead of hanging
  auto backend = UringBackend::create({});
  if (!backend.ok()) _exit(10);
  std::atomic<int> ended{0};
  const auto nop = [&] {
    OnRing op;
    op.ended = &ended;
    op.on_done = [](IoOp& done, std::int64_t result) noexcept {
      static_cast<OnRing&>(done).thread = ::gettid();
      count(done, result);
    };
    IoOp* const pointer = &op;
    const int before = ended;
    (*backend)->submit({&pointer, 1});
    while (ended == before) std::this_thread::yield();
    return op.outcome == 0 ? op.thread.load() : -1;
  };
  const pid_t ring = nop();
  if (ring < 0) _exit(11);
  for (int stops = 0; stops < kMaxEnterTries + 5; ++stops) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (int call = -1; call != SYS_io_uring_enter; std::this_thread::yield()) {
      std::ifstream("/proc/self/task/" + std::to_string(ring) + "/syscall") >> call;
      if (std::chrono::steady_clock::now() > deadline) _exit(12);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // see is_interruption()
    ::kill(::getpid(), SIGSTOP);
  }
  _exit(nop() == ring ? 0 : 13);
}

TEST(Uring, WorksOnAfterItsProcessWasStoppedManyTimesWhileIdle) {
  if (!std::ifstream("/proc/thread-self/syscall").good())
    GTEST_SKIP() << "this kernel does not show the calls that threads are in";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) stop_while_a_ring_is_idle();
  int status = 0;
  int stops = 0;
  for (; ::waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status); ++stops)
    ::kill(child, SIGCONT);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "after " << stops << " stops";
}

}  // namespace
}  // namespace sluice::aio
