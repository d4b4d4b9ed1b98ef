#include "engine/step/cuda_rank_link.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>

#include "aio/check.h"
#include "engine/comm/nccl_communicator.h"
#include "engine/comm/nccl_cuda.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/step/cuda_step.h"
#include "offload/unit_shards.h"

namespace sluice::engine {
namespace {

at::Device current_gpu() { return {at::kCUDA, c10::cuda::current_device()}; }

at::Tensor numbers_at(float* first, std::uint64_t elements) {
  return at::from_blob(first, {static_cast<std::int64_t>(elements)},
                       at::TensorOptions().dtype(at::kFloat).device(current_gpu()));
}

std::uint64_t world_of(const RankLink& ranks) {
  return static_cast<std::uint64_t>(ranks.part.world);
}

}  // namespace

CudaRankLink::CudaRankLink(const RankLink& ranks)
    : ranks_(ranks), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

CudaRankLink::~CudaRankLink() { static_cast<void>(cudaStreamSynchronize(stream_.stream())); }

Status CudaRankLink::gather(std::span<const std::byte> piece, std::byte* place,
                            const Traced& traced) {
  const std::uint64_t bytes = piece.size() * world_of(ranks_);
  const CudaCopySpan span({.trace = traced.log,
                           .track = TraceTrack::kLink,
                           .phase = "gather",
                           .name = traced.name,
                           .bytes = bytes},
                          stream_.stream());
  return ranks_.link->all_gather(piece, {place, bytes}, {.stream = stream_.stream()});
}

void CudaRankLink::make_scratch(std::uint64_t bytes, const offload::SumOrder& order) {
  scratch_ = at::empty({static_cast<std::int64_t>(bytes / sizeof(float))},
                       at::TensorOptions().dtype(at::kFloat).device(current_gpu()));
  order_ = order;
  additions_ = order.additions();
}

Result<float*> CudaRankLink::reduce(std::span<float* const> roots, std::uint64_t elements,
                                    const Traced& traced) {
  const std::uint64_t world = world_of(ranks_);
  const auto exchanges = static_cast<std::uint64_t>(order_.exchanges());
  const std::uint64_t piece = elements / world;
  const std::uint64_t at_once = static_cast<std::uint64_t>(scratch_.numel()) / (world * exchanges);
  SLUICE_CHECK(elements % world == 0 && at_once > 0, "a gathered unit, and room for an exchange");
  auto* const scratch = static_cast<float*>(scratch_.data_ptr());
  float* const own = roots.front() + static_cast<std::uint64_t>(ranks_.part.rank) * piece;
  const c10::cuda::CUDAStreamGuard guard(stream_);
  const CudaCopySpan span({.trace = traced.log,
                           .track = TraceTrack::kLink,
                           .phase = "reduce",
                           .name = traced.name,
                           .bytes = exchanges * elements * sizeof(float)},
                          stream_.stream());
  for (std::uint64_t first = 0; first < piece; first += at_once) {
    const std::uint64_t count = std::min(at_once, piece - first);
    for (std::uint64_t number = 0; number < exchanges; ++number) {
      const auto root = static_cast<std::size_t>(order_.exchange(static_cast<int>(number)));
      const std::span<const float> sent(roots[root] + first, (world - 1) * piece + count);
      const std::span<float> received(scratch + number * world * count, world * count);
      SLUICE_RETURN_IF_ERROR(ranks_.link->all_to_all(
          std::as_bytes(sent), std::as_writable_bytes(received),
          {.stream = stream_.stream(), .sent_stride_bytes = piece * sizeof(float)}));
    }
    add_up(own + first, count);
  }
  return own;
}

// Adds the pieces in the scratch buffer in order; the last addition writes the sum to `to`.
void CudaRankLink::add_up(float* to, std::uint64_t elements) {
  auto* const scratch = static_cast<float*>(scratch_.data_ptr());
  const auto piece = [&](int number) {
    return numbers_at(scratch + static_cast<std::uint64_t>(number) * elements, elements);
  };
  for (const offload::SumOrder::Addition& addition : additions_) {
    const bool is_last = &addition == &additions_.back();
    at::Tensor sum = is_last ? numbers_at(to, elements) : piece(addition.to);
    at::add_out(sum, piece(addition.to), piece(addition.from));
  }
}

Result<std::unique_ptr<Communicator>> make_gpu_communicator(Communicator& host) {
  constexpr std::chrono::hours kMostPatience(6);  // as long as another rank may need to save
  return make_nccl_communicator(
      host, {.stream_done = cuda_stream_done, .collective_timeout = kMostPatience});
}

std::shared_ptr<CudaRankLink> make_cuda_rank_link(const RankLink& ranks) {
  return std::make_shared<CudaRankLink>(ranks);
}

void* stream_of(const CudaRankLink* link) {
  return link == nullptr ? nullptr : link->stream().stream();
}

}  // namespace sluice::engine
