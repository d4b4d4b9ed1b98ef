#include "engine/device/gpu.h"
#include "engine/device/phase_clock.h"

namespace sluice::engine {

bool has_cuda_code() { return false; }
bool gpu_is_there() { return false; }
std::unique_ptr<PhaseClock> make_cuda_phase_clock() { return nullptr; }
std::optional<GpuMemory> cuda_memory() { return std::nullopt; }
Status limit_cuda_memory(std::uint64_t) { return no_cuda(); }
void grow_cuda_segments() {}

std::uint64_t cuda_peak_bytes() { return 0; }
HostPinning& cuda_host_pinning() {
  static HostPinning pinning({.pin = [](std::span<std::byte>) -> Status {
                                return Error(ErrorCode::kOutOfMemory, no_cuda().message());
                              },
                              .unpin = [](std::span<std::byte>) {}});
  return pinning;
}
aio::PinHook cuda_pin_hook() { return {}; }
std::uint64_t cuda_pinned_bytes() { return 0; }
Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t, void*) {
  return no_cuda();
}
int gpu_count() { return 0; }
std::string cuda_bus_id() { return {}; }

}  // namespace sluice::engine
