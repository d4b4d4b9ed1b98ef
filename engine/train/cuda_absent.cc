#include "engine/train/cuda_device.h"

namespace sluice::engine {
namespace {

Error absent() {
  return Error(ErrorCode::kUnsupported,
               "this build of Sluice has no CUDA code: install nvcc and run tools/setup again, or "
               "train on the CPU (run.device: \"cpu\")");
}

}  // namespace

Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout&,
                                                                  const CudaSlotOptions&,
                                                                  offload::ParamOffloader&,
                                                                  TraceLog*) {
  return absent();
}
Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout&,
                                                              const CudaSinkOptions&, TraceLog*) {
  return absent();
}
Result<std::unique_ptr<offload::DeviceTier>> make_cuda_state_tier(std::uint64_t) {
  return absent();
}
Status limit_cuda_memory(std::uint64_t) { return absent(); }
Result<std::unique_ptr<BoundaryStore>> make_cuda_boundary_store(const ModelLayout&,
                                                                const BoundaryOptions&, TraceLog*) {
  return absent();
}
std::unique_ptr<PhaseClock> make_cuda_phase_clock() { return nullptr; }
std::uint64_t cuda_peak_bytes() { return 0; }
std::uint64_t cuda_pinned_bytes() { return 0; }
std::optional<GpuMemory> cuda_memory() { return std::nullopt; }
aio::PinHook cuda_pin_hook() { return {}; }

}  // namespace sluice::engine
