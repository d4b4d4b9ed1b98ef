// link_probe.h: the parts that use GPUs.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "aio/clock.h"
#include "aio/units.h"
#include "engine/comm/nccl_communicator.h"
#include "engine/comm/nccl_cuda.h"
#include "engine/probe/gpu_probe.h"
#include "engine/probe/link_passes.h"
#include "engine/probe/link_probe.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kGpuBufferBytes = 128 * kMiB;
constexpr double kBusSeconds = 0.5;

at::Tensor gpu_bytes(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(
                                                           at::kCUDA, c10::cuda::current_device()));
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

// Rates while all GPUs of the host copy: the slowest GPU's, because all ranks wait for it.
Result<offload::DuplexRates> bus_together(Communicator& host) {
  SLUICE_RETURN_IF_ERROR(host.barrier());
  SLUICE_ASSIGN_OR_RETURN(const offload::DuplexRates own, probe_bus(kBusSeconds));
  std::vector<offload::DuplexRates> all(static_cast<std::size_t>(host.world_size()));
  SLUICE_RETURN_IF_ERROR(host.all_gather_values(own, std::span<offload::DuplexRates>(all)));
  offload::DuplexRates least = own;
  for (const offload::DuplexRates& rank : all) {
    least.in_bytes_per_s = std::min(least.in_bytes_per_s, rank.in_bytes_per_s);
    least.out_bytes_per_s = std::min(least.out_bytes_per_s, rank.out_bytes_per_s);
    least.in_both_bytes_per_s = std::min(least.in_both_bytes_per_s, rank.in_both_bytes_per_s);
    least.out_both_bytes_per_s = std::min(least.out_both_bytes_per_s, rank.out_both_bytes_per_s);
  }
  return least;
}

}  // namespace

Result<offload::LinkSpeeds> probe_gpu_link(Communicator& host) {
  offload::LinkSpeeds speeds;
  {
    SLUICE_ASSIGN_OR_RETURN(const auto link,
                            make_nccl_communicator(host, {.stream_done = cuda_stream_done}));
    const auto world = static_cast<std::uint64_t>(host.world_size());
    const at::Tensor sent = gpu_bytes(align_up(kGpuBufferBytes, world * 128));
    const at::Tensor received = gpu_bytes(static_cast<std::uint64_t>(sent.numel()));
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(true);
    const SteadyClock clock;
    SLUICE_ASSIGN_OR_RETURN(speeds, time_link(*link,
                                              {.sent = bytes_of(sent),
                                               .received = bytes_of(received),
                                               .stream = stream.stream()},
                                              clock));
    SLUICE_RETURN_IF_ERROR(host.barrier());
  }
  return_gpu_memory();
  SLUICE_ASSIGN_OR_RETURN(speeds.bus_together, bus_together(host));
  return_gpu_memory();
  return speeds;
}

}  // namespace sluice::engine
