#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/device/cuda_host_copies.h"
#include "engine/device/gpu.h"
#include "engine/step/cuda_accumulators.h"
#include "engine/step/cuda_rank_link.h"
#include "engine/step/cuda_step.h"
#include "offload/adamw/adamw_cuda.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {
namespace {

at::Tensor on_gpu(std::uint64_t bytes) {
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(
                                                           at::kCUDA, c10::cuda::current_device()));
}

using offload::ParamOffloader;

class CudaGradientSink final : public GradientSink {
 public:
  CudaGradientSink(const ModelLayout& model, CudaSinkOptions options,
                   const SinkFootprint& footprint, const CudaSinkParts& parts,
                   std::unique_ptr<aio::PinnedPool> pool)
      : GradientSink(options.order, model.units()),
        model_(model),
        options_(std::move(options)),
        stage_elements_(footprint.stage_bytes() / offload::element_bytes(options_.type)),
        places_(parts.places),
        link_(parts.link),
        trace_(parts.trace),
        pool_(std::move(pool)),
        host_(pool_->acquire()),
        copies_(c10::cuda::getStreamFromPool(false)),
        fetches_(c10::cuda::getStreamFromPool(false)),
        to_host_(copies_.stream()),
        from_host_(fetches_.stream()),
        kept_(on_gpu(footprint.kept_bytes())),
        square_sums_(on_gpu(footprint.square_sum_bytes())),
        sums_(model, options_, footprint),
        reduced_shard_(on_gpu(footprint.reduced_shard_bytes())),
        units_(static_cast<std::size_t>(model.units())),
        roots_(static_cast<std::size_t>(options_.order.roots())) {
    for (Stage& stage : stages_) stage.memory = on_gpu(footprint.stage_bytes());
    std::byte* on_host = host_.bytes().data() + footprint.square_sum_bytes();
    auto* on_device = static_cast<std::byte*>(kept_.data_ptr());
    std::uint64_t sums_before = 0;
    if (link_ != nullptr) link_->make_scratch(footprint.exchanged_bytes(), options_.order);
    for (int index = 0; index < model.units(); ++index) {
      const UnitLayout& layout = model.layout(index);
      Unit& unit = at(index);
      const UnitGradientBytes bytes =
          unit_gradient_bytes(model, options_.type, options_.sums, index, options_.ranks);
      const bool gpu_state = options_.residency.has_gpu_state(index);
      const std::uint64_t host_bytes =
          footprint.host_gradient_bytes(bytes, gpu_state, options_.residency.has_host_state(index));
      const std::uint64_t kept_bytes = SinkFootprint::kept_bytes(bytes, gpu_state);
      unit.is_sent = host_bytes > 0;
      unit.gradient = unit.is_sent && places_ == nullptr ? on_host : nullptr;
      unit.kept = kept_bytes > 0 ? on_device : nullptr;
      unit.sums_offset = sums_before;
      sums_before += bytes.square_sums;
      if (places_ == nullptr) on_host += host_bytes;
      on_device += kept_bytes;
      unit.shard = offload::shard_of(layout.elements, options_.ranks);
      unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
    }
  }
  ~CudaGradientSink() override {
    static_cast<void>(cudaStreamSynchronize(copies_.stream()));
    static_cast<void>(cudaStreamSynchronize(fetches_.stream()));
  }

  Status open(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(!unit.is_open, "open() of a unit that is closed");
    unit.is_open = true;
    const bool goes_on = unit.kept_sums > 0;
    if (goes_on) SLUICE_RETURN_IF_ERROR(fetch(index));
    unit.kept_sums = 0;
    if (sums_.has_own_place(index)) return {};
    // Later work waits for the slot. Sums from the host are already being copied.
    if (!goes_on) SLUICE_CHECK(sums_.occupy(index), "one unit at a time accumulates");
    (goes_on ? sums_.loaded(index) : sums_.free(index)).block(c10::cuda::getCurrentCUDAStream());
    return {};
  }

  Status keep(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open && options_.sums.kept > 0,
                 "keep() of an open unit, in a step of waves");
    unit.is_open = false;
    unit.kept_sums = open_sums(index);
    if (sums_.has_own_place(index)) return {};
    SLUICE_ASSIGN_OR_RETURN(std::byte* const place, take(sent_, index, Access::kOverwrite));
    copy_after(c10::cuda::getCurrentCUDAStream());
    const std::uint64_t bytes = static_cast<std::uint64_t>(unit.kept_sums) * sum_bytes(index);
    const CudaCopySpan span = traced(TraceTrack::kD2h, "sum of gradients", index, bytes);
    for (int level = 0; level < unit.kept_sums; ++level)
      SLUICE_RETURN_IF_ERROR(to_host_.out(host_sum(place, index, level), sums_.sum(index, level)));
    copied_bytes_ += bytes;
    sent_.used.record(copies_);
    unit.returned.record(copies_);
    sums_.free(index).record(copies_);
    sums_.leave(index);
    return {};
  }

  // Sums on NVMe are read first, and are copied when this is called again.
  Status prefetch(int index) override {
    if (at(index).kept_sums == 0 || sums_.has_own_place(index)) return {};
    if (places_ == nullptr || places_->in_memory(index)) return fetch(index);
    places_->prefetch(index);
    return {};
  }

  Status finish(int index) override {
    Unit& unit = at(index);
    SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
    unit.is_open = false;
    const Status sent = model_.layout(index).elements > 0 ? send_sum(index) : Status();
    if (sums_.has_own_place(index)) return sent;
    sums_.free(index).record(link_ != nullptr ? link_->stream()
                                              : c10::cuda::getCurrentCUDAStream());
    sums_.leave(index);
    return sent;
  }

  Result<GradientTotals> totals() override {
    copy_after(c10::cuda::getCurrentCUDAStream());
    if (link_ != nullptr) copy_after(link_->stream());
    SLUICE_RETURN_IF_ERROR(
        to_host_.out(host_.bytes().first(square_sums_.nbytes()), square_sums_.data_ptr()));
    check_cuda(cudaStreamSynchronize(copies_.stream()));
    give_back(sent_);
    give_back(fetched_);
    for (Unit& unit : units_) {
      const offload::UnitShard& shard = unit.shard;
      const auto* const sums =
          reinterpret_cast<const double*>(host_.bytes().data() + unit.sums_offset);
      unit.sum->reset(shard.first_element);
      unit.sum->append_sums(shard.elements,
                            {sums, offload::sum_node_count(shard.first_element, shard.elements)});
    }
    if (link_ != nullptr) {
      std::vector<offload::SquareSum*> sums;
      sums.reserve(units_.size());
      for (const Unit& unit : units_) sums.push_back(unit.sum.get());
      SLUICE_RETURN_IF_ERROR(gather_square_sums(link_->ranks(), model_, sums));
    }
    std::vector<const offload::SquareSum*> sums;
    sums.reserve(units_.size());
    for (const Unit& unit : units_) sums.push_back(unit.sum.get());
    return gradient_totals(model_, sums);
  }

  const void* host_gradient(int unit) const override {
    return units_[static_cast<std::size_t>(unit)].gradient;
  }
  Result<ParamOffloader::Lease> lease(int unit) override {
    if (places_ == nullptr || !at(unit).is_sent) return ParamOffloader::Lease();
    return places_->acquire(unit, Access::kRead);
  }
  const void* device_gradient(int unit) const override {
    return units_[static_cast<std::size_t>(unit)].kept;
  }
  Status read_device(int unit, std::span<std::byte> to) const override {
    SLUICE_CHECK(device_gradient(unit) != nullptr, "a gradient that stays on the GPU");
    if (link_ != nullptr) check_cuda(cudaStreamSynchronize(link_->stream().stream()));
    check_cuda(cudaMemcpy(to.data(), device_gradient(unit), to.size(), cudaMemcpyDeviceToHost));
    return {};
  }
  std::uint64_t host_bytes() const override { return pool_->buffer_bytes(); }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }
  std::uint64_t fetched_bytes() const override { return fetched_bytes_; }

 private:
  using Access = ParamOffloader::Access;

  struct Unit {
    at::cuda::CUDAEvent returned;  // the kept sums have reached the host

    bool is_sent = false;           // has a place on the host; false: the GPU updates all of it
    std::byte* gradient = nullptr;  // that place; null: on NVMe, or none
    std::byte* kept = nullptr;      // on the GPU; null: nothing stays there
    std::uint64_t sums_offset = 0;  // of its square sums, on the GPU and on the host
    offload::UnitShard shard;
    std::unique_ptr<offload::SquareSum> sum;
    bool is_open = false;
    int kept_sums = 0;  // kept by the last wave
  };
  struct Stage {
    at::Tensor memory;
    at::cuda::CUDAEvent copied;
  };
  // The buffer of a unit whose place is on NVMe, while it is copied from or to the GPU.
  struct Loan {
    ParamOffloader::Lease lease;
    at::cuda::CUDAEvent used{cudaEventDisableTiming | cudaEventBlockingSync};  // copies are done
  };

  // The unit's place in host memory. On NVMe it is a buffer that the loan holds until the next
  // call, which waits for the copies that `used` records.
  Result<std::byte*> take(Loan& loan, int index, Access access) {
    if (places_ == nullptr) return at(index).gradient;
    give_back(loan);
    for (Loan* other : {&sent_, &fetched_})
      if (other->lease && other->lease.unit() == index) give_back(*other);
    SLUICE_ASSIGN_OR_RETURN(loan.lease, places_->acquire(index, access));
    return loan.lease.bytes().data();
  }
  static void give_back(Loan& loan) {
    if (!loan.lease) return;
    loan.used.synchronize();
    loan.lease.release();
  }

  // Sends a unit's complete sum. With several ranks, the reduction overlaps the next backward.
  Status send_sum(int index) {
    if (link_ == nullptr) {
      for (const BorrowedSums& borrowed : sums_.borrowed_by(index)) borrowed.add_to_lender();
      return send_gradient(index, sums_.sum(index, 0));
    }
    filled_.record(c10::cuda::getCurrentCUDAStream());
    filled_.block(link_->stream());
    const c10::cuda::CUDAStreamGuard guard(link_->stream());
    SLUICE_ASSIGN_OR_RETURN(const float* const shard, reduced(index));
    return send_gradient(index, shard);
  }

  // See CpuGradientSink::reduced().
  Result<const float*> reduced(int index) {
    const Unit& unit = at(index);
    const std::vector<BorrowedSums>& borrowed_by = sums_.borrowed_by(index);
    const CudaRankLink::Traced traced{.log = trace_, .name = model_.layout(index).name.c_str()};
    for (std::size_t level = 0; level < roots_.size(); ++level)
      roots_[level] = sums_.sum(index, static_cast<int>(level));
    const std::uint64_t gathered =
        offload::gathered_elements(model_.layout(index).elements, options_.ranks.world);
    SLUICE_ASSIGN_OR_RETURN(const float* const first, link_->reduce(roots_, gathered, traced));
    if (borrowed_by.empty()) return first;
    auto* const shard = static_cast<float*>(reduced_shard_.data_ptr());
    check_cuda(cudaMemcpyAsync(shard, first, unit.shard.elements * sizeof(float),
                               cudaMemcpyDeviceToDevice, compute()));
    for (int use = 0; use < borrowed_by.front().uses(); ++use) {
      for (const BorrowedSums& of_root : borrowed_by) of_root.copy_to_lender(use);
      SLUICE_ASSIGN_OR_RETURN(float* const of_use, link_->reduce(roots_, gathered, traced));
      for (const offload::ElementRange& range : borrowed_by.front().ranges(use)) {
        const std::uint64_t begin = std::max(range.first, unit.shard.first_element);
        const std::uint64_t end = std::min(range.first + range.elements, unit.shard.end());
        if (begin >= end) continue;
        const std::uint64_t at_shard = begin - unit.shard.first_element;
        floats_at(shard + at_shard, end - begin).add_(floats_at(of_use + at_shard, end - begin));
      }
    }
    return shard;
  }

  // Sends the gradient of this rank's shard, on the current stream.
  Status send_gradient(int index, const float* from) {
    Unit& unit = at(index);
    const std::uint64_t elements = unit.shard.elements;
    if (elements == 0) return {};
    if (unit.kept != nullptr) {  // totals() has waited for the previous step's copies
      SLUICE_RETURN_IF_ERROR(cast_to(unit.kept, from, square_sums(index),
                                     {.first = unit.shard.first_element, .elements = elements}));
      if (!unit.is_sent) return {};
      SLUICE_ASSIGN_OR_RETURN(std::byte* const place, take(sent_, index, Access::kOverwrite));
      SLUICE_RETURN_IF_ERROR(
          copy_to_host(index, place, unit.kept, 0, options_.residency.on_host(index)));
      sent_.used.record(copies_);
      return {};
    }
    SLUICE_ASSIGN_OR_RETURN(std::byte* const place, take(sent_, index, Access::kOverwrite));
    // A stage holds the whole shard, or whole blocks of sums. The blocks are counted from the
    // unit's first element, wherever the shard begins.
    const std::uint64_t before = unit.shard.first_element % offload::kSumBlockElements;
    std::uint64_t most = stage_elements_ >= elements ? elements : stage_elements_ - before;
    for (std::uint64_t first = 0; first < elements;) {
      const offload::ElementRange piece = {.first = first,
                                           .elements = std::min(most, elements - first)};
      SLUICE_RETURN_IF_ERROR(send(index, place, from + first, piece));
      first += piece.elements;
      most = stage_elements_;
    }
    sent_.used.record(copies_);
    return {};
  }

  double* square_sums(int index) {
    return reinterpret_cast<double*>(static_cast<std::byte*>(square_sums_.data_ptr()) +
                                     at(index).sums_offset);
  }

  std::uint64_t sum_bytes(int index) const { return model_.layout(index).elements * sizeof(float); }
  std::span<std::byte> host_sum(std::byte* place, int index, int level) const {
    return {place + static_cast<std::uint64_t>(level) * sum_bytes(index), sum_bytes(index)};
  }

  const UnitViews& sums(int index, int level) override { return sums_.views(index, level); }
  void zero(int index, int level) override { sums_.zero(index, level); }
  void fold(int index, int level) override { sums_.fold(index, level); }

  // Starts to copy kept sums back, unless they are on the GPU or being copied, or no slot is free.
  Status fetch(int index) {
    Unit& unit = at(index);
    if (sums_.has_own_place(index) || sums_.in_slot(index)) return {};
    if (!sums_.occupy(index)) return {};
    SLUICE_ASSIGN_OR_RETURN(std::byte* const place, take(fetched_, index, Access::kRead));
    sums_.free(index).block(fetches_);
    unit.returned.block(fetches_);
    const std::uint64_t bytes = static_cast<std::uint64_t>(unit.kept_sums) * sum_bytes(index);
    const CudaCopySpan span = traced(TraceTrack::kH2d, "sum of gradients", index, bytes);
    for (int level = 0; level < unit.kept_sums; ++level)
      SLUICE_RETURN_IF_ERROR(from_host_.in(sums_.sum(index, level), host_sum(place, index, level)));
    fetched_bytes_ += bytes;
    fetched_.used.record(fetches_);
    sums_.loaded(index).record(fetches_);
    return {};
  }

  // Sends a piece of a unit's gradient through the next stage.
  Status send(int index, std::byte* place, const float* from, const offload::ElementRange& piece) {
    Stage& stage = stages_[next_stage_++ % kGradientStages];
    stage.copied.block(c10::cuda::getCurrentCUDAStream());
    auto* const staged = static_cast<std::byte*>(stage.memory.data_ptr());
    const std::uint64_t begin = at(index).shard.first_element;
    double* const sums = square_sums(index) + offload::sum_node_count(begin, piece.first);
    SLUICE_RETURN_IF_ERROR(
        cast_to(staged, from, sums, {.first = begin + piece.first, .elements = piece.elements}));
    const std::uint64_t before = piece.first * offload::element_bytes(options_.type);
    SLUICE_RETURN_IF_ERROR(copy_to_host(index, place, staged, before, {&piece, 1}));
    stage.copied.record(copies_);
    return {};
  }

  // Casts the gradient of a range of the unit and sums its squares.
  Status cast_to(std::byte* to, const float* from, double* sums,
                 const offload::ElementRange& range) {
    const bool cast = options_.type != offload::GradType::kFp32;
    SLUICE_RETURN_IF_ERROR(
        offload::cast_and_sum_cuda({.grad = from,
                                    .to = options_.type,
                                    .out = cast ? reinterpret_cast<std::uint16_t*>(to) : nullptr,
                                    .first = range.first,
                                    .elements = range.elements,
                                    .node_sums = sums},
                                   compute()));
    if (!cast)
      check_cuda(cudaMemcpyAsync(to, from, range.elements * sizeof(float), cudaMemcpyDeviceToDevice,
                                 compute()));
    return {};
  }

  // Enqueued after the current work. `place`: the unit's, on the host. `from` holds the unit's
  // gradient from byte `before` on.
  Status copy_to_host(int index, std::byte* place, const std::byte* from, std::uint64_t before,
                      std::span<const offload::ElementRange> ranges) {
    const std::uint64_t width = offload::element_bytes(options_.type);
    std::uint64_t bytes = 0;
    for (const offload::ElementRange& range : ranges) bytes += range.elements * width;
    copy_after(c10::cuda::getCurrentCUDAStream());
    const CudaCopySpan span = traced(TraceTrack::kD2h, "gradient", index, bytes);
    for (const offload::ElementRange& range : ranges) {
      const std::uint64_t at_byte = range.first * width;
      SLUICE_RETURN_IF_ERROR(
          to_host_.out({place + at_byte, range.elements * width}, from + (at_byte - before)));
    }
    copied_bytes_ += bytes;
    return {};
  }

  // Copies to the host wait for the work that `stream` has now.
  void copy_after(const c10::cuda::CUDAStream& stream) {
    filled_.record(stream);
    filled_.block(copies_);
  }
  CudaCopySpan traced(TraceTrack track, const char* phase, int index, std::uint64_t bytes) {
    return CudaCopySpan({.trace = trace_,
                         .track = track,
                         .phase = phase,
                         .name = model_.layout(index).name.c_str(),
                         .bytes = bytes},
                        (track == TraceTrack::kD2h ? copies_ : fetches_).stream());
  }
  static cudaStream_t compute() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void check_cuda(cudaError_t result) { C10_CUDA_CHECK(result); }
  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  const ModelLayout& model_;
  const CudaSinkOptions options_;
  const std::uint64_t stage_elements_;
  ParamOffloader* const places_;  // null: gradients on the host are in memory
  CudaRankLink* const link_;      // null: there is one rank
  TraceLog* const trace_;
  const std::unique_ptr<aio::PinnedPool> pool_;
  aio::PinnedPool::Lease host_;
  c10::cuda::CUDAStream copies_;   // to the host
  c10::cuda::CUDAStream fetches_;  // from the host
  CudaHostCopies to_host_;
  CudaHostCopies from_host_;
  at::Tensor kept_;         // gradients that stay on the GPU, consecutively
  at::Tensor square_sums_;  // of all units; copied to the first bytes of host_
  at::cuda::CUDAEvent filled_;
  CudaAccumulators sums_;
  at::Tensor reduced_shard_;  // a lender's shard, while its borrowers' sums are reduced
  std::array<Stage, kGradientStages> stages_;
  std::size_t next_stage_ = 0;
  std::vector<Unit> units_;
  std::vector<float*> roots_;  // of the unit being reduced
  Loan sent_;                  // to the host
  Loan fetched_;               // from the host
  std::uint64_t copied_bytes_ = 0;
  std::uint64_t fetched_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<GradientSink>> make_cuda_gradient_sink(const ModelLayout& model,
                                                              const CudaSinkOptions& options,
                                                              const CudaSinkParts& parts) {
  const SinkFootprint footprint = SinkFootprint::of(model, options);
  SLUICE_ASSIGN_OR_RETURN(auto pool,
                          aio::PinnedPool::create({.buffer_bytes = footprint.host_bytes(),
                                                   .capacity = 1,
                                                   .lock = aio::MemoryLock::kNone,
                                                   .hook = cuda_pin_hook()}));
  return std::unique_ptr<GradientSink>(
      std::make_unique<CudaGradientSink>(model, options, footprint, parts, std::move(pool)));
}

}  // namespace sluice::engine
