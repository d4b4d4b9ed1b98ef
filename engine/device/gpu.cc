#include "engine/device/gpu.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "aio/log.h"
#include "offload/state/device_tier_cuda.h"

namespace sluice::engine {
namespace {

// A driver refuses in several ways: out of memory, not supported, invalid value. If the GPU still
// answers, it was a refusal.
Status pin_with_cuda(std::span<std::byte> memory) {
  const cudaError_t pinned =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault);
  if (pinned == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // else the next launch reports it
  return Error(cuda_memory() ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
               cudaGetErrorString(pinned));
}

void unpin_with_cuda(std::span<std::byte> memory) {
  if (cudaHostUnregister(memory.data()) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

std::optional<std::uint64_t> pin_limit_of_tests() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets it
  const auto limit = parse_pin_limit(std::getenv(kPinLimitVariable));
  if (limit.ok()) return *limit;
  log::warning(limit.error().message());
  return std::nullopt;
}

class OwnedStateTier final : public offload::DeviceTier {
 public:
  OwnedStateTier(at::Tensor memory, cudaStream_t stream)
      : memory_(std::move(memory)),
        tier_({static_cast<std::byte*>(memory_.data_ptr()), memory_.nbytes()}, stream) {}

  std::span<std::byte> memory() const override { return tier_.memory(); }
  Status step(const offload::AdamwScalars& scalars, const offload::AdamwArrays& arrays,
              std::uint64_t elements) override {
    return tier_.step(scalars, arrays, elements);
  }
  Status start_read(const void* from, std::span<std::byte> to) override {
    return tier_.start_read(from, to);
  }
  Status start_write(void* to, std::span<const std::byte> from) override {
    return tier_.start_write(to, from);
  }
  Status finish() override { return tier_.finish(); }

 private:
  const at::Tensor memory_;
  offload::CudaDeviceTier tier_;
};

}  // namespace

bool has_cuda_code() { return true; }

bool gpu_is_there() { return at::hasCUDA(); }

Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t bytes,
                                                                  void* stream) {
  at::Tensor memory = at::empty(
      {static_cast<std::int64_t>(bytes)},
      at::TensorOptions().dtype(at::kByte).device(at::kCUDA, c10::cuda::current_device()));
  if (stream == nullptr) stream = c10::cuda::getCurrentCUDAStream().stream();
  return std::unique_ptr<offload::DeviceTier>(
      std::make_unique<OwnedStateTier>(std::move(memory), static_cast<cudaStream_t>(stream)));
}

int gpu_count() { return c10::cuda::device_count(); }

std::string cuda_bus_id() {
  std::array<char, 32> id{};
  const cudaError_t asked =
      cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), c10::cuda::current_device());
  if (asked == cudaSuccess) return id.data();
  static_cast<void>(cudaGetLastError());
  return "";
}

Status limit_cuda_memory(std::uint64_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const cudaError_t asked = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (asked != cudaSuccess) {
    return Error(ErrorCode::kInternal,
                 std::string("querying the GPU's memory failed: ") + cudaGetErrorString(asked));
  }
  at::globalContext().lazyInitDevice(at::kCUDA);  // initializes the allocator too
  const double share = static_cast<double>(bytes) / static_cast<double>(total_bytes);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(share, 1.0),
                                                     c10::cuda::current_device());
  return {};
}

void grow_cuda_segments() {
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

std::uint64_t cuda_peak_bytes() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.reserved_bytes[0].peak);
}

std::optional<GpuMemory> cuda_memory() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  return GpuMemory{.free_bytes = free_bytes, .total_bytes = total_bytes};
}

HostPinning& cuda_host_pinning() {
  static HostPinning& pinning = *new HostPinning(  // never destroyed: pools may outlive statics
      {.pin = pin_with_cuda, .unpin = unpin_with_cuda}, pin_limit_of_tests());
  return pinning;
}

std::uint64_t cuda_pinned_bytes() { return cuda_host_pinning().pinned_bytes(); }

aio::PinHook cuda_pin_hook() { return cuda_host_pinning().hook(); }

}  // namespace sluice::engine
