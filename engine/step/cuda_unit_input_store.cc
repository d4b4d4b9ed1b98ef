#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <deque>
#include <string>
#include <utility>

#include "aio/check.h"
#include "engine/budget/unit_input_plan.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/device/cuda_host_copies.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_step.h"
#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

// Inputs that are spilled to the drives pass through the buffers of an InputSpill, as these become
// free. Their copies are enqueued when a buffer is free, or when no other work can proceed.
//
// Events order the streams for each slot of the ring. The compute stream waits until the slot's
// previous input has left, and then writes the next. Backward reads the input there; the copy that
// brings in another one waits for that read. Each step waits for an event of the compute stream, so
// a block's host memory is also used in order (written, read, written by the next step).
class CudaUnitInputStore final : public UnitInputStore {
 public:
  CudaUnitInputStore(const ModelLayout& model, const UnitInputOptions& options,
                     SpilledInputs spilled, TraceLog* trace, std::unique_ptr<aio::PinnedPool> pool)
      : options_(options),
        plan_(model, options),
        last_(model.blocks()),
        spilled_(std::move(spilled)),
        trace_(trace),
        pool_(std::move(pool)),
        to_host_(c10::cuda::getStreamFromPool(false)),
        from_host_(c10::cuda::getStreamFromPool(false)),
        ends_(c10::cuda::getStreamFromPool(false)),
        out_(to_host_.stream()),
        in_(from_host_.stream()),
        slots_(static_cast<std::size_t>(plan_.ring().slots())) {
    if (pool_ != nullptr) host_ = pool_->acquire();
    for (int unit = 0; unit < model.units(); ++unit) {
      names_.push_back(model.layout(unit).name);
      host_places_.push_back(in_ram_);
      if (plan_.ring().moves(unit) && unit > 0 && !spilled_.has(unit)) ++in_ram_;
      if (!spilled_.has(unit)) continue;
      for (std::int64_t m = 0; m < options.micro_batches; ++m)
        ends_of_copies_.push_back(
            {&spilled_.spill(), spilled_.piece(unit, static_cast<std::size_t>(m))});
    }
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
    static_cast<void>(cudaStreamSynchronize(ends_.stream()));
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
    while (slot.leaving > 0) send_next();
    slot.left.block(compute);
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      SLUICE_CHECK(inputs[m].nbytes() == plan_.unit_input_bytes() && inputs[m].is_contiguous(),
                   "an input of the model's shape");
      check_cuda(cudaMemcpyAsync(slot.inputs[m].data_ptr(), inputs[m].data_ptr(),
                                 plan_.unit_input_bytes(), cudaMemcpyDeviceToDevice,
                                 compute.stream()));
    }
    if (plan_.ring().moves(unit)) send(unit, inputs.size(), slot);
    if (unit != last_) return;
    while (!leaving_.empty()) send_next();
    spilled_.turn_back(inputs.size());
  }

  at::Tensor take(int unit, std::size_t micro_batch) override {
    if (unit == 0) return std::move(tokens_[micro_batch]);
    Slot& slot = slot_of(unit);
    while (slot.arriving_from <= micro_batch) bring_next();
    while (!arriving_.empty() && spilled_.spill().is_here(piece_of(arriving_.front())))
      bring_next();
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
    if (spilled_.has(next)) {
      slot.arriving_from = 0;
      for (std::size_t m = 0; m < micro_batches_; ++m) arriving_.push_back({next, m});
      return;
    }
    slot.used.block(from_host_);
    const CudaCopySpan span(copy(TraceTrack::kH2d, next, plan_.unit_bytes()), from_host_.stream());
    throw_if_error(in_.in(slot.inputs.front().data_ptr(), {host_place(next), plan_.unit_bytes()}));
    slot.arrived.record(from_host_);
    slot.arriving = true;
    from_host_bytes_ += plan_.unit_bytes();
  }

  std::uint64_t to_host_bytes() const override { return to_host_bytes_; }
  std::uint64_t from_host_bytes() const override { return from_host_bytes_; }

 private:
  static constexpr std::size_t kAll = ~std::size_t{0};

  struct Slot {
    std::vector<at::Tensor> inputs;    // by micro-batch, consecutive
    bool arriving = false;             // nothing waits for the copy yet
    std::size_t leaving = 0;           // micro-batches not sent yet
    std::size_t arriving_from = kAll;  // first micro-batch not fetched yet
    at::cuda::CUDAEvent filled;        // by the compute stream
    at::cuda::CUDAEvent left;          // to the host
    at::cuda::CUDAEvent used;          // by backward
    at::cuda::CUDAEvent arrived;       // from the host
  };
  // An input that goes through a buffer of the spill. Its copies are enqueued as buffers become
  // free.
  struct Passing {
    int unit = 0;
    std::size_t micro_batch = 0;
  };
  // The argument of the host function at the end of a copy.
  struct EndOfCopy {
    offload::InputSpill* spill = nullptr;
    int piece = 0;
  };

  static void check_cuda(cudaError_t result) { C10_CUDA_CHECK(result); }
  Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(plan_.ring().slot_of(unit))]; }
  int piece_of(const Passing& it) const { return spilled_.piece(it.unit, it.micro_batch); }

  void send(int unit, std::size_t micro_batches, Slot& slot) {
    slot.filled.record(c10::cuda::getCurrentCUDAStream());
    if (spilled_.has(unit)) {
      micro_batches_ = micro_batches;
      slot.leaving = micro_batches;
      for (std::size_t m = 0; m < micro_batches; ++m) leaving_.push_back({unit, m});
      while (!leaving_.empty() && try_send_next()) {
      }
      return;
    }
    slot.filled.block(to_host_);
    const CudaCopySpan span(copy(TraceTrack::kD2h, unit, plan_.unit_bytes()), to_host_.stream());
    throw_if_error(
        out_.out({host_place(unit), plan_.unit_bytes()}, slot.inputs.front().data_ptr()));
    slot.left.record(to_host_);
    to_host_bytes_ += plan_.unit_bytes();
  }

  // ---- through the spill's buffers

  bool try_send_next() {
    const auto place =
        engine::value_or_throw(spilled_.spill().try_begin(piece_of(leaving_.front())));
    if (place) send_to(*place);
    return place.has_value();
  }
  void send_next() {
    send_to(engine::value_or_throw(spilled_.spill().begin(piece_of(leaving_.front()))));
  }

  void send_to(std::span<std::byte> place) {
    const Passing it = leaving_.front();
    leaving_.pop_front();
    Slot& slot = slot_of(it.unit);
    slot.filled.block(to_host_);
    const CudaCopySpan span(copy(TraceTrack::kD2h, it.unit, place.size()), to_host_.stream());
    throw_if_error(out_.out(place, slot.inputs[it.micro_batch].data_ptr()));
    slot.left.record(to_host_);
    --slot.leaving;
    to_host_bytes_ += place.size();
    tell(&write, to_host_, it);
  }

  void bring_next() {
    const Passing it = arriving_.front();
    const std::span<const std::byte> bytes =
        engine::value_or_throw(spilled_.spill().take(piece_of(it)));
    arriving_.pop_front();
    Slot& slot = slot_of(it.unit);
    slot.used.block(from_host_);
    const CudaCopySpan span(copy(TraceTrack::kH2d, it.unit, bytes.size()), from_host_.stream());
    throw_if_error(in_.in(slot.inputs[it.micro_batch].data_ptr(), bytes));
    slot.arrived.record(from_host_);
    slot.arriving = true;
    slot.arriving_from = it.micro_batch + 1 < micro_batches_ ? it.micro_batch + 1 : kAll;
    from_host_bytes_ += bytes.size();
    tell(&release_buffer, from_host_, it);
  }

  // Uses a separate stream, so that the host function at a copy's end does not delay the next copy.
  void tell(cudaHostFn_t what, const c10::cuda::CUDAStream& stream, const Passing& it) {
    copied_.record(stream);
    copied_.block(ends_);
    check_cuda(cudaLaunchHostFunc(ends_.stream(), what,
                                  &ends_of_copies_[static_cast<std::size_t>(piece_of(it))]));
  }
  static void write(void* it) noexcept {
    const auto& end = *static_cast<const EndOfCopy*>(it);
    end.spill->write(end.piece);
  }
  static void release_buffer(void* it) noexcept {
    const auto& end = *static_cast<const EndOfCopy*>(it);
    end.spill->release(end.piece);
  }

  std::byte* host_place(int unit) {
    return host_.bytes().data() + host_places_[static_cast<std::size_t>(unit)] * plan_.unit_bytes();
  }
  CudaCopySpan::Copy copy(TraceTrack track, int unit, std::uint64_t bytes) const {
    return {.trace = trace_,
            .track = track,
            .phase = "unit input",
            .name = names_[static_cast<std::size_t>(unit)].c_str(),
            .bytes = bytes};
  }

  const UnitInputOptions options_;
  const UnitInputPlan plan_;
  const int last_;  // the last unit whose input is kept
  SpilledInputs spilled_;
  TraceLog* const trace_;
  std::vector<std::string> names_;               // of the trace's spans, by unit
  std::vector<std::uint64_t> host_places_;       // by unit, if in host memory
  std::uint64_t in_ram_ = 0;                     // units
  std::vector<EndOfCopy> ends_of_copies_;        // by piece
  const std::unique_ptr<aio::PinnedPool> pool_;  // null: the ring holds everything
  aio::PinnedPool::Lease host_;                  // for blocks that leave the ring
  c10::cuda::CUDAStream to_host_;
  c10::cuda::CUDAStream from_host_;
  c10::cuda::CUDAStream ends_;  // host functions after copies through the spill's buffers
  CudaHostCopies out_;
  CudaHostCopies in_;
  at::cuda::CUDAEvent copied_;  // the latest such copy
  std::vector<Slot> slots_;
  std::deque<Passing> leaving_;     // in order
  std::deque<Passing> arriving_;    // in order
  std::size_t micro_batches_ = 0;   // in the wave
  std::vector<at::Tensor> tokens_;  // unit 0's inputs, which the batch holds anyway
  std::uint64_t to_host_bytes_ = 0;
  std::uint64_t from_host_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<UnitInputStore>> make_cuda_unit_input_store(const ModelLayout& model,
                                                                   const UnitInputOptions& options,
                                                                   SpilledInputs spilled,
                                                                   TraceLog* trace) {
  std::unique_ptr<aio::PinnedPool> pool;
  const UnitInputPlan plan(model, options);
  std::uint64_t bytes = plan.host_bytes();
  for (int unit = 1; unit <= plan.ring().moved(); ++unit)
    if (spilled.has(unit)) bytes -= plan.unit_bytes();
  if (bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(pool, aio::PinnedPool::create({.buffer_bytes = bytes,
                                                           .capacity = 1,
                                                           .lock = aio::MemoryLock::kNone,
                                                           .hook = cuda_pin_hook()}));
  }
  return std::unique_ptr<UnitInputStore>(std::make_unique<CudaUnitInputStore>(
      model, options, std::move(spilled), trace, std::move(pool)));
}

}  // namespace sluice::engine
