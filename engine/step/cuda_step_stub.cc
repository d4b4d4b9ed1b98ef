#include "engine/device/gpu.h"
#include "engine/step/cuda_step.h"

namespace sluice::engine {

Result<std::unique_ptr<Communicator>> make_gpu_communicator(Communicator&) { return no_cuda(); }
std::shared_ptr<CudaRankLink> make_cuda_rank_link(const RankLink&) { return nullptr; }
void* stream_of(const CudaRankLink*) { return nullptr; }
Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout&,
                                                                  const CudaSlotOptions&,
                                                                  offload::ParamOffloader&,
                                                                  CudaRankLink*, TraceLog*) {
  return no_cuda();
}
Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout&,
                                                              const CudaSinkOptions&,
                                                              const CudaSinkParts&) {
  return no_cuda();
}
Result<std::unique_ptr<UnitInputStore>> make_cuda_unit_input_store(
    const ModelLayout&, const UnitInputOptions&,
    SpilledInputs,  // NOLINT(performance-unnecessary-value-param): the signature is the real one's
    TraceLog*) {
  return no_cuda();
}

}  // namespace sluice::engine
