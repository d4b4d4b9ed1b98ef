#include "aio/io_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "aio/direct_file.h"
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

TEST(DescribeDrive, NamesDeviceFileSystemAndMountPoint) {
  EXPECT_THAT(describe_drive("/proc/self/status"),
              AllOf(HasSubstr("(proc, "), HasSubstr("mounted at /proc)")));
  EXPECT_THAT(describe_drive("/no/such/file"), HasSubstr("mounted at /)"));
}

}  // namespace
}  // namespace sluice::aio
