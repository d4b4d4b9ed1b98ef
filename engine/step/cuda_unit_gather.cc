#include "engine/step/cuda_unit_gather.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>

#include <string>

#include "aio/check.h"
#include "engine/device/gpu.h"
#include "engine/step/train_error.h"
#include "offload/params/sent_weights_cuda.h"

namespace sluice::engine {
namespace {

at::Tensor gpu_bytes(std::uint64_t bytes) {
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  return at::empty({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

CudaUnitGather::CudaUnitGather(const ModelLayout& model, const CudaSlotOptions& options,
                               CudaRankLink& link, TraceLog* trace)
    : model_(model),
      options_(options),
      link_(link),
      trace_(trace),
      pieces_(gpu_bytes(SlotFootprint::of(model, options).pieces_bytes())),
      copies_(model, options.form(), options.gathering, options.residency) {
  const std::uint64_t bytes = copies_.bytes();
  if (bytes == 0) return;
  SLUICE_CHECK(link.ranks().link->world_size(ProcessGroup::kNode) == options.ranks.local_world(),
               "the plan knows how many ranks a host has");
  if (options.gathering.copies == config::HostCopy::kGpu) {
    on_gpu_ = gpu_bytes(bytes);
    return;
  }
  in_ram_ = value_or_throw(aio::PageMemory::map(bytes, /*huge_pages=*/true));
  static_cast<void>(value_or_throw(cuda_host_pinning().pin(in_ram_.bytes())));
  ram_copies_.emplace(link.stream().stream());
}

CudaUnitGather::~CudaUnitGather() {
  static_cast<void>(cudaStreamSynchronize(link_.stream().stream()));
  ram_copies_.reset();
  if (in_ram_.size_bytes() > 0) cuda_host_pinning().unpin(in_ram_.bytes());
}

Status CudaUnitGather::gather(int unit, std::span<const std::byte> shard, std::byte* place) {
  return options_.gathering.in_int8 ? gather_in_int8(unit, shard, place)
                                    : gather_pieces(unit, shard, place);
}

// With one rank, too, so that it computes with the same values.
Status CudaUnitGather::gather_in_int8(int unit, std::span<const std::byte> shard,
                                      std::byte* place) {
  const offload::SentUnit sent =
      sent_unit(model_.layout(unit), options_.param_form, options_.ranks.world);
  const offload::CudaSentUnit form{.elements = sent.elements,
                                   .encoded = sent.encoded,
                                   .piece_elements = sent.piece_elements(),
                                   .piece_bytes = sent.piece_bytes(),
                                   .form = sent.form};
  auto* const pieces = static_cast<std::byte*>(pieces_.data_ptr());
  const std::span<std::byte> mine(
      pieces + static_cast<std::uint64_t>(options_.ranks.rank) * form.piece_bytes,
      form.piece_bytes);
  void* const stream = link_.stream().stream();
  if (!copies_.has(unit))
    SLUICE_RETURN_IF_ERROR(
        offload::encode_sent_cuda(form, options_.ranks.rank, shard.data(), mine.data(), stream));
  SLUICE_RETURN_IF_ERROR(gather_pieces(unit, mine, pieces));
  return offload::decode_sent_cuda(form, pieces, place, stream);
}

// Gathers `all` from the ranks of this host if they have a copy of it, else from all ranks.
Status CudaUnitGather::gather_pieces(int unit, std::span<const std::byte> piece, std::byte* all) {
  const CudaRankLink::Traced traced{.log = trace_, .name = model_.layout(unit).name.c_str()};
  if (!copies_.may_keep(unit)) return link_.gather(piece, all, traced);
  const auto local = static_cast<std::uint64_t>(link_.ranks().link->rank(ProcessGroup::kNode));
  const std::span<std::byte> part(all + local * copies_.part_bytes(unit), copies_.part_bytes(unit));
  if (copies_.has(unit)) {
    SLUICE_RETURN_IF_ERROR(read_part(unit, part));
    return link_.gather(part, all, traced, ProcessGroup::kNode);
  }
  SLUICE_RETURN_IF_ERROR(link_.gather(piece, all, traced));
  SLUICE_RETURN_IF_ERROR(write_part(unit, part));
  copies_.set(unit);
  return {};
}

Status CudaUnitGather::read_part(int unit, std::span<std::byte> to) {
  const std::uint64_t offset = copies_.offset(unit);
  if (ram_copies_) return ram_copies_->in(to.data(), in_ram_.bytes().subspan(offset, to.size()));
  return copy(to.data(), {static_cast<const std::byte*>(on_gpu_.data_ptr()) + offset, to.size()});
}

Status CudaUnitGather::write_part(int unit, std::span<const std::byte> from) {
  const std::uint64_t offset = copies_.offset(unit);
  if (ram_copies_)
    return ram_copies_->out(in_ram_.bytes().subspan(offset, from.size()), from.data());
  return copy(static_cast<std::byte*>(on_gpu_.data_ptr()) + offset, from);
}

Status CudaUnitGather::copy(std::byte* to, std::span<const std::byte> from) const {
  const cudaError_t copied = cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDeviceToDevice,
                                             link_.stream().stream());
  if (copied == cudaSuccess) return {};
  return Error(ErrorCode::kInternal,
               std::string("copying gathered parameters failed: ") + cudaGetErrorString(copied));
}

}  // namespace sluice::engine
