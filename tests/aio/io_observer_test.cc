#include "aio/io_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "aio/direct_file.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;

struct Seen {
  IoKind kind;
  std::string label;
  std::uint64_t offset_bytes;
  std::uint64_t length_bytes;
  bool ok;
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

class Recorder final : public IoObserver {
 public:
  void on_end(const IoRequest& request, std::int64_t end_ns) noexcept override {
    const std::lock_guard lock(mutex_);
    seen_.push_back({request.kind(), request.label(), request.offset_bytes(),
                     request.length_bytes(), request.status().ok(), request.begin_ns(), end_ns});
  }
  std::vector<Seen> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
};

class IoObserverOnRealFiles : public EveryBackend {
 protected:
  std::unique_ptr<DirectFile> open(IoQueue& queue) {
    DirectFile::Options options;
    options.open = {.access = OpenOptions::Access::kReadWrite,
                    .create = OpenOptions::Create::kMustNotExist};
    options.size_bytes = 1 * kMiB;
    auto file = DirectFile::open(queue, folder_.file("data"), options);
    if (!file.ok()) throw std::runtime_error(file.error().message());
    return std::move(*file);
  }
  TemporaryFolder folder_;
};

TEST_P(IoObserverOnRealFiles, SeesEachRequestOnceHoweverManyBlocksItTook) {
  Recorder recorder;
  const auto real = backend();
  const auto queue =
      make_queue_or_die(*real, {.block_bytes = 4 * kKiB, .queue_depth = 2, .observer = &recorder});
  const auto file = open(*queue);
  std::vector<std::byte> bytes = random_bytes(100'000, 3);
  IoRequest request;
  request.set_label("weights");
  const std::int64_t before_ns = real->clock().now_ns();
  request.prepare_write(*file, 8192, bytes);
  queue->submit(request);
  ASSERT_OK(queue->wait(request));
  ASSERT_OK(queue->read(*file, 5, std::span(bytes).first(70'000)));
  ASSERT_OK(queue->sync(*file));
  ASSERT_FALSE(queue->read(*file, 1 * kMiB, std::span(bytes).first(1)).ok());
  const std::int64_t after_ns = real->clock().now_ns();

  const std::vector<Seen> seen = recorder.seen();
  std::vector<std::string> told;
  std::int64_t last_ns = before_ns;
  for (const Seen& each : seen) {
    told.push_back(std::string(to_string(each.kind)) + " " + each.label + " " +
                   std::to_string(each.offset_bytes) + " " + std::to_string(each.length_bytes) +
                   (each.ok ? "" : " failed"));
    EXPECT_LE(last_ns, each.begin_ns);
    EXPECT_LE(each.begin_ns, each.end_ns);
    last_ns = each.end_ns;
  }
  EXPECT_LE(last_ns, after_ns);
  EXPECT_THAT(told, ElementsAre("write weights 8192 100000", "read data 5 70000", "sync data 0 0",
                                "read data 1048576 1 failed"));
}

// So spans show a busy drive rather than a long queue.
TEST_P(IoObserverOnRealFiles, CountsARequestsTimeFromItsFirstBlockOn) {
  Recorder recorder;
  const auto real = backend();
  const auto queue =
      make_queue_or_die(*real, {.block_bytes = 4 * kKiB, .queue_depth = 1, .observer = &recorder});
  const auto file = open(*queue);
  const std::vector<std::byte> bytes = random_bytes(256 * kKiB, 4);
  IoRequest first, second;
  first.prepare_write(*file, 0, bytes);
  second.prepare_write(*file, 512 * kKiB, bytes);
  queue->submit(first);
  queue->submit(second);
  ASSERT_OK(queue->wait(first));
  ASSERT_OK(queue->wait(second));
  const std::vector<Seen> seen = recorder.seen();
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_GE(seen[1].begin_ns, seen[0].end_ns);
}

SLUICE_TEST_EVERY_BACKEND(IoObserverOnRealFiles);

}  // namespace
}  // namespace sluice::aio
