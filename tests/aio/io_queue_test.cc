#include "aio/io_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "aio/direct_file.h"
#include "aio/sim_drive.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kFileBytes = 3 * kMiB + 1234;

DirectFile::Options new_file(std::uint64_t size_bytes, bool direct = true) {
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kMustNotExist,
                  .direct = direct};
  options.size_bytes = size_bytes;
  return options;
}

std::unique_ptr<DirectFile> open_or_die(IoQueue& queue, const std::string& path,
                                        const DirectFile::Options& options) {
  auto file = DirectFile::open(queue, path, options);
  if (!file.ok()) throw std::runtime_error(file.error().message());
  return std::move(*file);
}

// The file's content as read by a program that has nothing to do with Sluice.
std::vector<std::byte> read_plainly(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto count =
        ::pread(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  ::close(descriptor);
  return bytes;
}

class IoQueueOnRealFiles : public EveryBackend {
 protected:
  TemporaryFolder folder_;
};

// The oracle is a plain byte array: everything written through the queue is also written there.
TEST_P(IoQueueOnRealFiles, AgreesWithAByteArrayForAnyOffsetLengthAndAddress) {
  const auto backend = this->backend(2);
  for (const bool direct : {true, false}) {
    const auto queue = make_queue_or_die(*backend, {.block_bytes = 16 * kKiB, .queue_depth = 6});
    const std::string path = folder_.file(direct ? "direct" : "buffered");
    auto file = open_or_die(*queue, path, new_file(kFileBytes, direct));
    std::vector<std::byte> oracle(kFileBytes);
    const std::uint64_t seed = 7;
    std::mt19937_64 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t limit = i % 4 == 0 ? 300 * kKiB : 9000;
      const std::uint64_t length = random() % limit;
      const bool at_end = i % 7 == 0;
      const std::uint64_t offset =
          at_end ? kFileBytes - length : random() % (kFileBytes - length + 1);
      std::vector<std::byte> memory = random_bytes(length + 64, random());
      const std::span<std::byte> data(memory.data() + random() % 64, length);
      if (i % 2 == 0) {
        ASSERT_OK(queue->write(*file, offset, data));
        std::copy(data.begin(), data.end(), oracle.begin() + static_cast<std::ptrdiff_t>(offset));
      } else {
        ASSERT_OK(queue->read(*file, offset, data));
        ASSERT_TRUE(std::equal(data.begin(), data.end(),
                               oracle.begin() + static_cast<std::ptrdiff_t>(offset)))
            << "operation " << i << ": " << length << " bytes at " << offset;
      }
    }
    ASSERT_OK(file->finish());
    EXPECT_EQ(read_plainly(path), oracle);
  }
}

TEST_P(IoQueueOnRealFiles, KeepsBothNeighboursWhenTwoWritesShareASector) {
  const auto backend = this->backend(2);
  const auto queue = make_queue_or_die(*backend, {.block_bytes = 4096, .queue_depth = 32});
  auto file = open_or_die(*queue, folder_.file("shared"), new_file(64 * kKiB));
  for (int round = 0; round < 20; ++round) {
    // 64 KiB in pieces of 1000 bytes, all in flight at once: almost every sector has several
    // writers.
    const auto data = random_bytes(64 * kKiB, static_cast<std::uint64_t>(round));
    std::vector<std::unique_ptr<IoRequest>> requests;
    for (std::size_t offset = 0; offset < data.size(); offset += 1000) {
      requests.push_back(std::make_unique<IoRequest>());
      requests.back()->prepare_write(
          *file, offset,
          std::span(data).subspan(offset, std::min<std::size_t>(1000, data.size() - offset)));
      queue->submit(*requests.back());
    }
    for (auto& request : requests) ASSERT_OK(queue->wait(*request));
    std::vector<std::byte> back(data.size());
    ASSERT_OK(queue->read(*file, 0, back));
    ASSERT_EQ(back, data) << "round " << round;
  }
}

TEST_P(IoQueueOnRealFiles, RefusesWhatReachesBeyondTheEnd) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  auto file = open_or_die(*queue, folder_.file("f"), new_file(8192));
  std::vector<std::byte> data(4096);
  for (const std::uint64_t offset : {std::uint64_t{8000}, std::uint64_t{9000}, ~std::uint64_t{0}}) {
    const Status status = queue->write(*file, offset, data);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message(), HasSubstr("beyond the end"));
    EXPECT_THAT(status.error().message(), HasSubstr("8192"));
  }
  EXPECT_OK(queue->read(*file, 8192, std::span<std::byte>()));  // nothing, at the end
}

TEST_P(IoQueueOnRealFiles, SaysWhereAFileWasCutBehindItsBack) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {.max_retries = 1});
  const std::string path = folder_.file("cut");
  auto file = open_or_die(*queue, path, new_file(64 * kKiB));
  ASSERT_EQ(::truncate(path.c_str(), 40 * 1024), 0);
  std::vector<std::byte> data(64 * kKiB);
  const Status status = queue->read(*file, 0, data);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kEndOfFile);
  EXPECT_THAT(status.error().message(), HasSubstr("at offset 40960 in " + path));
}

// A callback that submits again from the backend's own thread, as pipelines do.
struct Chain {
  IoQueue* queue;
  const DirectFile* file;
  std::atomic<int> left{0};
  std::atomic<int> failed{0};
  std::atomic<int> ended{0};  // requests whose last callback has returned
};

TEST_P(IoQueueOnRealFiles, TakesNewRequestsFromCompletions) {
  const auto backend = this->backend(2, 4);
  const auto queue = make_queue_or_die(*backend, {.block_bytes = 4096, .queue_depth = 4});
  auto file = open_or_die(*queue, folder_.file("chain"), new_file(1 * kMiB));
  Chain chain{.queue = queue.get(), .file = file.get()};
  chain.left = 500;
  auto memory = PageMemory::map(8 * 4096, false);
  ASSERT_OK(memory);
  std::array<IoRequest, 8> requests;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prepare_read(*file, i * 4096, memory->bytes().subspan(i * 4096, 4096));
    requests[i].set_callback(
        [](IoRequest& request, void* context) noexcept {
          auto& state = *static_cast<Chain*>(context);
          if (!request.status().ok()) ++state.failed;
          if (state.left.fetch_sub(1) > 0)
            state.queue->submit(request);
          else
            ++state.ended;
        },
        &chain);
  }
  for (auto& request : requests) queue->submit(request);
  while (chain.ended < static_cast<int>(requests.size())) std::this_thread::yield();
  EXPECT_EQ(queue->stats().read.requests, 508U);
  EXPECT_EQ(chain.failed, 0);
}

// On a busy machine all of them may have ended before the shutdown; then the test tries again.
TEST_P(IoQueueOnRealFiles, EndsEveryRequestWhenShutDownWithSomeInFlight) {
  const auto backend = this->backend();
  static constexpr int kRequests = 50;
  static constexpr int kTries = 20;
  auto memory = PageMemory::map(kMiB, false);
  ASSERT_OK(memory);
  auto file_queue = make_queue_or_die(*backend, {});
  auto file = open_or_die(*file_queue, folder_.file("f"), new_file(kMiB));
  int cancelled = 0;
  for (int attempt = 0; attempt < kTries && cancelled == 0; ++attempt) {
    std::array<IoRequest, kRequests> requests;
    std::atomic<int> ended{0};
    {
      const auto queue = make_queue_or_die(*backend, {.block_bytes = 4096, .queue_depth = 2});
      for (auto& request : requests) {
        request.prepare_read(*file, 0, memory->bytes());
        request.set_callback(
            [](IoRequest&, void* context) noexcept { ++*static_cast<std::atomic<int>*>(context); },
            &ended);
        queue->submit(request);
      }
    }
    EXPECT_EQ(ended, kRequests);
    for (const auto& request : requests) {
      if (request.status().ok()) continue;
      EXPECT_EQ(request.status().error().code(), ErrorCode::kCancelled);
      ++cancelled;
    }
  }
  EXPECT_GT(cancelled, 0);
}

TEST_P(IoQueueOnRealFiles, CountsPayloadAndPadding) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {.block_bytes = 64 * kKiB});
  auto file = open_or_die(*queue, folder_.file("f"), new_file(kMiB));
  if (!file->direct()) GTEST_SKIP() << "no O_DIRECT here, so nothing is padded";
  auto memory = PageMemory::map(kMiB, false);
  ASSERT_OK(memory);
  ASSERT_OK(queue->write(*file, 0, memory->bytes()));
  IoStats stats = queue->stats();
  EXPECT_EQ(stats.write.requests, 1U);
  EXPECT_EQ(stats.write.blocks, 16U);
  EXPECT_EQ(stats.write.payload_bytes, kMiB);
  EXPECT_EQ(stats.write.device_bytes, kMiB);
  queue->reset_stats();
  ASSERT_OK(queue->write(*file, 100, memory->bytes().first(50)));
  stats = queue->stats();
  EXPECT_EQ(stats.write.payload_bytes, 50U);
  EXPECT_EQ(stats.write.device_bytes, 4096U);
  EXPECT_EQ(stats.read.device_bytes, 4096U);  // read to be modified
  EXPECT_EQ(stats.read.requests, 0U);
  EXPECT_EQ(stats.bounced_blocks, 1U);
}

SLUICE_TEST_EVERY_BACKEND(IoQueueOnRealFiles);

TEST(IoQueue, NamesTheOptionThatIsOutOfRange) {
  const auto backend = make_backend_or_die(BackendKind::kPosix);
  for (const std::uint64_t block : {0, 100, 5000}) {
    const auto queue = IoQueue::create(*backend, {.block_bytes = block});
    ASSERT_FALSE(queue.ok());
    EXPECT_THAT(queue.error().message(), HasSubstr("block size"));
  }
  for (const int depth : {0, -1, 5000}) {
    const auto queue = IoQueue::create(*backend, {.queue_depth = depth});
    ASSERT_FALSE(queue.ok());
    EXPECT_THAT(queue.error().message(), HasSubstr("queue depth"));
  }
}

// ---- in virtual time: what real drives do too fast, too slow or too rarely to be tested on ------

class IoQueueInVirtualTime : public testing::Test {
 protected:
  VirtualLoop loop_;
  SimDrive drive_{loop_, {}};
};

TEST_F(IoQueueInVirtualTime, KeepsQueueDepthBlocksInFlightAndNoMore) {
  const auto queue = make_queue_or_die(drive_, {.block_bytes = 4096, .queue_depth = 3});
  auto file = open_or_die(*queue, "/f", new_file(kMiB));
  std::vector<std::byte> data(64 * kKiB);
  IoRequest request;
  request.prepare_write(*file, 0, data);
  queue->submit(request);
  const auto oldest = queue->oldest_in_flight();
  ASSERT_TRUE(oldest.has_value());
  EXPECT_EQ(oldest->path, "/f");
  EXPECT_EQ(oldest->kind, IoKind::kWrite);
  EXPECT_EQ(oldest->offset_bytes, 0U);
  EXPECT_EQ(drive_.ops_in_flight(), 3);
  ASSERT_OK(queue->wait(request));
  EXPECT_EQ(queue->stats().write.blocks, 16U);
  EXPECT_FALSE(queue->oldest_in_flight().has_value());
}

TEST_F(IoQueueInVirtualTime, MovesWholeSectorsWhenTheyAreLargerThanABlock) {
  SimDrive::Options options;
  options.sector_bytes = 64 << 10;
  SimDrive drive(loop_, options);
  const auto queue = make_queue_or_die(drive, {.block_bytes = 4096, .queue_depth = 3});
  auto file = open_or_die(*queue, "/f", new_file(300'000));
  auto memory = PageMemory::map(kMiB, true);
  ASSERT_OK(memory);
  const auto data = random_bytes(300'000, 5);
  std::copy(data.begin(), data.end(), memory->data());
  ASSERT_OK(queue->write(*file, 0, memory->bytes().first(200'000)));
  ASSERT_OK(queue->write(*file, 200'000, std::span(data).subspan(200'000)));
  std::vector<std::byte> back(300'000);
  ASSERT_OK(queue->read(*file, 0, back));
  EXPECT_EQ(back, data);
}

TEST_F(IoQueueInVirtualTime, CancelStartsNoFurtherBlock) {
  const auto queue = make_queue_or_die(drive_, {.block_bytes = 4096, .queue_depth = 4});
  auto file = open_or_die(*queue, "/f", new_file(kMiB));
  std::vector<std::byte> data(kMiB);
  IoRequest running;
  IoRequest waiting;
  running.prepare_write(*file, 0, data);
  waiting.prepare_write(*file, 0, data);
  queue->submit(running);
  queue->submit(waiting);
  queue->cancel(waiting);
  queue->cancel(running);
  for (IoRequest* request : {&running, &waiting}) {
    const Status& status = queue->wait(*request);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(queue->stats().write.blocks, 4U);  // those that were in flight
  EXPECT_EQ(queue->stats().failed_requests, 0U);
  queue->cancel(running);  // no longer in flight: no effect
  EXPECT_OK(queue->write(*file, 0, data));
}

}  // namespace
}  // namespace sluice::aio
