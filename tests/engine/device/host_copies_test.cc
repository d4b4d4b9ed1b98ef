// Copies of pinned memory, of pageable memory through a buffer, and of pageable memory without one
// give the same bytes in the same order, whenever the streams get to them.
#include "engine/device/host_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/split_mix.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

HostPinning::Driver willing() {
  return {.pin = [](std::span<std::byte>) -> Status { return {}; },
          .unpin = [](std::span<std::byte>) {}};
}

// Streams whose work runs late, in any order that the streams allow. Pageable memory is copied as
// an unkind driver would: read when the copy is enqueued, and written before the call returns.
class FakeGpu {
 public:
  using Event = std::shared_ptr<bool>;

  class Stream final : public CopyStream {
   public:
    Stream(FakeGpu& gpu, const HostPinning& pinning) : gpu_(gpu), pinning_(pinning) {}

    Status to_device(void* to, std::span<const std::byte> from) override {
      if (pinning_.is_pinned(from)) return copy(to, from.data(), from.size());
      const std::vector<std::byte> read(from.begin(), from.end());
      return then([to, read] { std::memcpy(to, read.data(), read.size()); });
    }
    Status to_host(std::span<std::byte> to, const void* from) override {
      SLUICE_RETURN_IF_ERROR(copy(to.data(), from, to.size()));
      return pinning_.is_pinned(to) ? Status() : wait();
    }
    Status wait() override {
      while (!work_.empty()) gpu_.run_some();
      return {};
    }
    Status call(void (*function)(void*) noexcept, void* argument) override {
      if (calls_left_ == 0) return Error(ErrorCode::kInternal, "no more calls");
      if (calls_left_ > 0) --calls_left_;
      return then([function, argument] { function(argument); });
    }
    void fail_after(int calls) { calls_left_ = calls; }

    Event record() {
      auto event = std::make_shared<bool>(false);
      static_cast<void>(then([event] { *event = true; }));
      return event;
    }
    void block(Event event) {
      work_.push_back({.after = std::move(event), .work = [] {}});
    }
    bool run_one() {
      if (work_.empty() || (work_.front().after && !*work_.front().after)) return false;
      const auto work = std::move(work_.front().work);
      work_.pop_front();
      work();
      return true;
    }
    bool is_idle() const { return work_.empty(); }

   private:
    struct Work {
      Event after;
      std::function<void()> work;
    };
    Status then(std::function<void()> work) {
      work_.push_back({.after = nullptr, .work = std::move(work)});
      return {};
    }
    Status copy(void* to, const void* from, std::size_t bytes) {
      return then([=] { std::memcpy(to, from, bytes); });
    }

    FakeGpu& gpu_;
    const HostPinning& pinning_;
    std::deque<Work> work_;
    int calls_left_ = -1;
  };

  FakeGpu(const HostPinning& pinning, std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 2; ++i) streams_.push_back(std::make_unique<Stream>(*this, pinning));
  }
  Stream& stream(std::size_t index) { return *streams_[index]; }

  void run_some() {
    const std::size_t first = random_.below(streams_.size());
    if (!streams_[first]->run_one()) streams_[1 - first]->run_one();
  }
  void run_all() {
    while (!streams_[0]->is_idle() || !streams_[1]->is_idle()) run_some();
  }

 private:
  aio::SplitMix random_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

constexpr std::size_t kBytes = HostCopies::kLeastBufferBytes * 5 / 2;  // two pieces and a half

// What can be pinned, of three host memories and then of two buffers.
struct Case {
  const char* what;
  std::uint64_t of_memory;
  std::uint64_t of_buffers;
  int pinned;  // memories
  std::uint64_t buffers[2];
};
constexpr std::uint64_t kLeast = HostCopies::kLeastBufferBytes;
constexpr std::uint64_t kMost = HostCopies::kBufferBytes;
constexpr Case kCases[] = {
    {"everything", 3 * kBytes, 2 * kMost, 3, {0, 0}},
    {"nothing", 0, 0, 0, {0, 0}},
    {"one small buffer", 0, kLeast, 0, {kLeast, 0}},
    {"some memory and small buffers", kBytes, 5 * kLeast, 1, {4 * kLeast, kLeast}},
    {"most memory and buffers", 2 * kBytes, 2 * kMost, 2, {kMost, kMost}},
    {"memory, and no buffer", 2 * kBytes, kLeast - 1, 2, {0, 0}},
};

class HostCopiesCases : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
  }
  void TearDown() override { log::set_sink({}); }
};

// Random copies on two streams, each after all before it, against the same copies made at once.
TEST_P(HostCopiesCases, GiveTheBytesOfCopiesMadeAtOnce) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    HostPinning pinning(willing(), GetParam().of_memory);
    FakeGpu gpu(pinning, seed);
    std::vector<std::vector<std::byte>> host;
    std::vector<std::vector<std::byte>> device;
    for (std::uint64_t i = 0; i < 3; ++i) {
      host.push_back(aio::random_bytes(kBytes, 10 * seed + i));
      device.push_back(aio::random_bytes(kBytes, 100 * seed + i));
    }
    auto expected_host = host;
    auto expected_device = device;
    for (auto& memory : host) ASSERT_OK(pinning.pin(memory));
    ASSERT_EQ(pinning.pinned_bytes(), static_cast<std::uint64_t>(GetParam().pinned) * kBytes);
    pinning.set_limit(pinning.pinned_bytes() + GetParam().of_buffers);
    {
      HostCopies first(pinning, gpu.stream(0));
      HostCopies second(pinning, gpu.stream(1));
      EXPECT_EQ(first.buffer_bytes(), GetParam().buffers[0]);
      EXPECT_EQ(second.buffer_bytes(), GetParam().buffers[1]);
      aio::SplitMix random(seed);
      FakeGpu::Event last;
      for (int i = 0; i < 30; ++i) {
        const std::size_t on = random.below(2);
        HostCopies& copies = on == 0 ? first : second;
        const std::size_t h = random.below(3);
        const std::size_t d = random.below(3);
        const std::size_t begin = random.below(kBytes);
        const std::size_t bytes = random.below(kBytes - begin) + 1;
        if (last) gpu.stream(on).block(last);
        if (random.below(2) == 0) {
          ASSERT_OK(
              copies.to_device(device[d].data() + begin, std::span(host[h]).subspan(begin, bytes)));
          std::memcpy(expected_device[d].data() + begin, expected_host[h].data() + begin, bytes);
        } else {
          ASSERT_OK(
              copies.to_host(std::span(host[h]).subspan(begin, bytes), device[d].data() + begin));
          std::memcpy(expected_host[h].data() + begin, expected_device[d].data() + begin, bytes);
        }
        last = gpu.stream(on).record();
        for (std::size_t some = random.below(8); some > 0; --some) gpu.run_some();
      }
      gpu.run_all();
    }
    EXPECT_TRUE(host == expected_host);
    EXPECT_TRUE(device == expected_device);
    for (auto& memory : host) pinning.unpin(memory);
    EXPECT_EQ(pinning.pinned_bytes() + pinning.refused_bytes(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Pinned, HostCopiesCases, testing::ValuesIn(kCases),
                         [](const auto& it) { return "case" + std::to_string(it.index); });

TEST(HostCopies, ReturnWithoutWaitingWhereTheyHaveABuffer) {
  HostPinning pinning(willing(), HostCopies::kBufferBytes);
  FakeGpu gpu(pinning, 1);
  std::vector<std::byte> host(kBytes);
  std::vector<std::byte> device(kBytes, std::byte{7});
  {
    HostCopies copies(pinning, gpu.stream(0), HostCopies::Buffer::kAlways);
    gpu.stream(0).block(std::make_shared<bool>(true));
    ASSERT_OK(copies.to_host(host, device.data()));
    EXPECT_FALSE(gpu.stream(0).is_idle());
    EXPECT_EQ(host.front(), std::byte{0});
    gpu.run_all();
    EXPECT_TRUE(host == device);
  }
}

TEST(HostCopies, ReportAStreamThatFails) {
  HostPinning pinning(willing());
  FakeGpu gpu(pinning, 1);
  std::vector<std::byte> host(HostCopies::kBufferBytes * 3);
  std::vector<std::byte> device(host.size());
  HostCopies copies(pinning, gpu.stream(0), HostCopies::Buffer::kAlways);
  gpu.stream(0).fail_after(2);
  EXPECT_FALSE(copies.to_device(device.data(), host).ok());
  gpu.stream(0).fail_after(0);
  EXPECT_FALSE(copies.to_host(host, device.data()).ok());
  gpu.run_all();
}

}  // namespace
}  // namespace sluice::engine
