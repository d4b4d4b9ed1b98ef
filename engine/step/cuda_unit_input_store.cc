#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <string>
#include <utility>

#include "aio/check.h"
#include "engine/budget/unit_input_plan.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/device/gpu.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_step.h"

namespace sluice::engine {
namespace {

// What orders the streams, for a slot of the ring: a block's input is put in by the compute stream,
// which first waits until the previous one has left; backward uses it there; the next one comes in
// when it has been used. Each of these waits for an event of the compute stream, so a block's host
// memory is also used in order (written, read, written by the next step).
class CudaUnitInputStore final : public UnitInputStore {
 public:
  CudaUnitInputStore(const ModelLayout& model, const UnitInputOptions& options, TraceLog* trace,
                     std::unique_ptr<aio::PinnedPool> pool)
      : options_(options),
        plan_(model, options),
        trace_(trace),
        pool_(std::move(pool)),
        to_host_(c10::cuda::getStreamFromPool(false)),
        from_host_(c10::cuda::getStreamFromPool(false)),
        slots_(static_cast<std::size_t>(plan_.ring().slots())) {
    if (pool_ != nullptr) host_ = pool_->acquire();
    for (int unit = 0; unit < model.units(); ++unit)
      names_.push_back(model.layout(unit).name + " input");
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    const at::Tensor ring = at::zeros({static_cast<std::int64_t>(plan_.gpu_bytes())},
                                      at::TensorOptions().dtype(at::kByte).device(device));
    const auto bytes = static_cast<std::int64_t>(plan_.unit_input_bytes());
    std::int64_t place = 0;
    for (Slot& slot : slots_) {
      for (std::int64_t m = 0; m < options.micro_batches; ++m) {
        slot.inputs.push_back(ring.narrow(0, place, bytes)
                                  .view(scalar_type(options.type))
                                  .view({options.micro_batch, options.tokens, model.hidden()}));
        place += static_cast<std::int64_t>(plan_.place_bytes());
      }
    }
  }
  ~CudaUnitInputStore() override {
    static_cast<void>(cudaStreamSynchronize(to_host_.stream()));
    static_cast<void>(cudaStreamSynchronize(from_host_.stream()));
  }

  void keep(int unit, std::span<const at::Tensor> inputs) override {
    if (unit == 0) {
      tokens_.assign(inputs.begin(), inputs.end());
      return;
    }
    SLUICE_CHECK(inputs.size() <= static_cast<std::size_t>(options_.micro_batches),
                 "no more micro-batches than were planned");
    const auto compute = c10::cuda::getCurrentCUDAStream();
    Slot& slot = slot_of(unit);
    slot.left.block(compute);
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      SLUICE_CHECK(inputs[m].nbytes() == plan_.unit_input_bytes() && inputs[m].is_contiguous(),
                   "an input of the model's shape");
      must(cudaMemcpyAsync(slot.inputs[m].data_ptr(), inputs[m].data_ptr(),
                           plan_.unit_input_bytes(), cudaMemcpyDeviceToDevice, compute.stream()));
    }
    if (!plan_.ring().moves(unit)) return;
    slot.filled.record(compute);
    slot.filled.block(to_host_);
    const CudaCopySpan span(copy(TraceTrack::kD2h, unit), to_host_.stream());
    must(cudaMemcpyAsync(host_place(unit), slot.inputs.front().data_ptr(), plan_.unit_bytes(),
                         cudaMemcpyDeviceToHost, to_host_.stream()));
    slot.left.record(to_host_);
    to_host_bytes_ += plan_.unit_bytes();
  }

  at::Tensor take(int unit, std::size_t micro_batch) override {
    if (unit == 0) return std::move(tokens_[micro_batch]);
    Slot& slot = slot_of(unit);
    if (std::exchange(slot.arriving, false)) slot.arrived.block(c10::cuda::getCurrentCUDAStream());
    return slot.inputs[micro_batch];
  }

  void release(int unit) override {
    if (unit == 0) {
      tokens_.clear();
      return;
    }
    const int next = plan_.ring().follower(unit);
    if (next == UnitInputRing::kNothing) return;
    Slot& slot = slot_of(unit);
    slot.used.record(c10::cuda::getCurrentCUDAStream());
    slot.used.block(from_host_);
    const CudaCopySpan span(copy(TraceTrack::kH2d, next), from_host_.stream());
    must(cudaMemcpyAsync(slot.inputs.front().data_ptr(), host_place(next), plan_.unit_bytes(),
                         cudaMemcpyHostToDevice, from_host_.stream()));
    slot.arrived.record(from_host_);
    slot.arriving = true;
    from_host_bytes_ += plan_.unit_bytes();
  }

  std::uint64_t to_host_bytes() const override { return to_host_bytes_; }
  std::uint64_t from_host_bytes() const override { return from_host_bytes_; }

 private:
  struct Slot {
    std::vector<at::Tensor> inputs;  // by micro-batch: consecutively
    bool arriving = false;           // nothing has waited yet for what comes from the host
    at::cuda::CUDAEvent filled;      // by the compute stream
    at::cuda::CUDAEvent left;        // for the host
    at::cuda::CUDAEvent used;        // by backward
    at::cuda::CUDAEvent arrived;     // from the host
  };

  static void must(cudaError_t result) { C10_CUDA_CHECK(result); }
  Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(plan_.ring().slot_of(unit))]; }
  std::byte* host_place(int unit) {
    return host_.bytes().data() + static_cast<std::uint64_t>(unit - 1) * plan_.unit_bytes();
  }
  CudaCopySpan::Copy copy(TraceTrack track, int unit) const {
    return {.trace = trace_,
            .track = track,
            .name = names_[static_cast<std::size_t>(unit)].c_str(),
            .bytes = plan_.unit_bytes()};
  }

  const UnitInputOptions options_;
  const UnitInputPlan plan_;
  TraceLog* const trace_;
  std::vector<std::string> names_;               // of the trace's spans, by unit
  const std::unique_ptr<aio::PinnedPool> pool_;  // null: the ring holds everything
  aio::PinnedPool::Lease host_;                  // of the blocks that move, in their order
  c10::cuda::CUDAStream to_host_;
  c10::cuda::CUDAStream from_host_;
  std::vector<Slot> slots_;
  std::vector<at::Tensor> tokens_;  // unit 0's inputs: the batch holds them anyway
  std::uint64_t to_host_bytes_ = 0;
  std::uint64_t from_host_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<UnitInputStore>> make_cuda_unit_input_store(const ModelLayout& model,
                                                                   const UnitInputOptions& options,
                                                                   TraceLog* trace) {
  std::unique_ptr<aio::PinnedPool> pool;
  if (const std::uint64_t bytes = UnitInputPlan(model, options).host_bytes(); bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(pool, aio::PinnedPool::create({.buffer_bytes = bytes,
                                                           .capacity = 1,
                                                           .lock = aio::MemoryLock::kNone,
                                                           .hook = cuda_pin_hook()}));
  }
  return std::unique_ptr<UnitInputStore>(
      std::make_unique<CudaUnitInputStore>(model, options, trace, std::move(pool)));
}

}  // namespace sluice::engine
