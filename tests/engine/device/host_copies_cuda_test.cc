// Copies of pageable memory on a GPU's streams: the calls return at once, other streams go on
// meanwhile, and events stand for the whole copy. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "aio/split_mix.h"
#include "engine/device/cuda_host_copies.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

constexpr std::size_t kBytes = 8 * HostCopies::kBufferBytes + 12345;

#define ASSERT_CUDA(call) ASSERT_STREQ(cudaGetErrorString(call), cudaGetErrorString(cudaSuccess))

struct Stream {
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&it, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(it)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t it = nullptr;
};

struct DeviceMemory {
  DeviceMemory() { EXPECT_EQ(cudaMalloc(&it, kBytes), cudaSuccess); }
  ~DeviceMemory() { static_cast<void>(cudaFree(it)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* it = nullptr;
};

// Holds a stream until it is opened, but no longer than a minute, and then fills host memory.
struct Gate {
  std::vector<std::byte>& to;
  const std::vector<std::byte>& from;
  std::atomic<bool> is_open = false;
  std::atomic<bool> was_passed = false;

  static void wait(void* of) noexcept {
    auto& gate = *static_cast<Gate*>(of);
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!gate.is_open && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gate.to = gate.from;
    gate.was_passed = true;
  }
};

TEST(HostCopiesCuda, ReturnAtOnceAndEventsStandForTheWholeCopy) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU";
  const auto bytes = aio::random_bytes(kBytes, 1);
  std::vector<std::byte> from(kBytes);
  std::vector<std::byte> back(kBytes);
  std::vector<std::byte> later(kBytes);
  const DeviceMemory first;
  const DeviceMemory second;
  const Stream copying;
  const Stream computing;
  cudaEvent_t copied = nullptr;
  ASSERT_CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  Gate gate{.to = from, .from = bytes};
  {
    CudaHostCopies copies(copying.it, HostCopies::Buffer::kAlways);
    ASSERT_CUDA(cudaLaunchHostFunc(copying.it, &Gate::wait, &gate));
    ASSERT_OK(copies.in(first.it, from));
    ASSERT_OK(copies.out(back, first.it));
    ASSERT_CUDA(cudaEventRecord(copied, copying.it));
    // What waits for no copy runs to its end.
    ASSERT_CUDA(cudaMemsetAsync(second.it, 1, kBytes, computing.it));
    ASSERT_CUDA(cudaStreamSynchronize(computing.it));
    EXPECT_EQ(cudaEventQuery(copied), cudaErrorNotReady);
    static_cast<void>(cudaGetLastError());
    EXPECT_FALSE(gate.was_passed) << "a call waited for the stream";

    ASSERT_CUDA(cudaStreamWaitEvent(computing.it, copied));
    ASSERT_CUDA(
        cudaMemcpyAsync(second.it, first.it, kBytes, cudaMemcpyDeviceToDevice, computing.it));
    gate.is_open = true;
    ASSERT_CUDA(cudaStreamSynchronize(computing.it));
    EXPECT_TRUE(back == bytes);  // copied before the event
    ASSERT_CUDA(cudaMemcpy(later.data(), second.it, kBytes, cudaMemcpyDeviceToHost));
    EXPECT_TRUE(later == bytes);
  }
  ASSERT_CUDA(cudaEventDestroy(copied));
}

}  // namespace
}  // namespace sluice::engine
