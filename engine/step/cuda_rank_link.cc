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
#include "offload/sum_codec_cuda.h"
#include "offload/unit_shards.h"

namespace sluice::engine {
namespace {

at::Device current_gpu() { return {at::kCUDA, c10::cuda::current_device()}; }

using Rows = SumExchange::Rows;

at::Tensor numbers_at(const Rows& rows) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(current_gpu());
  const auto elements = static_cast<std::int64_t>(rows.elements);
  return at::from_blob(rows.first, {static_cast<std::int64_t>(rows.rows), elements},
                       {static_cast<std::int64_t>(rows.stride), 1}, options);
}

std::uint64_t world_of(const RankLink& ranks) {
  return static_cast<std::uint64_t>(ranks.part.world);
}

SumExchange::Kernels kernels_on(cudaStream_t stream) {
  const auto pieces = [](offload::SumCodec codec, const Rows& rows) {
    return offload::CudaSumPieces{
        .codec = codec, .pieces = rows.rows, .elements = rows.elements, .stride = rows.stride};
  };
  return {.add =
              [](const Rows& sum, const Rows& a, const Rows& b) {
                at::Tensor to = numbers_at(sum);
                at::add_out(to, numbers_at(a), numbers_at(b));
              },
          .encode =
              [=](offload::SumCodec codec, const Rows& from, std::byte* to) {
                return offload::encode_sums_cuda(pieces(codec, from), from.first, to, stream);
              },
          .decode =
              [=](offload::SumCodec codec, const std::byte* from, const Rows& to) {
                return offload::decode_sums_cuda(pieces(codec, to), from, to.first, stream);
              }};
}

}  // namespace

CudaRankLink::CudaRankLink(const RankLink& ranks)
    : ranks_(ranks), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

CudaRankLink::~CudaRankLink() { static_cast<void>(cudaStreamSynchronize(stream_.stream())); }

Status CudaRankLink::gather(std::span<const std::byte> piece, std::byte* place,
                            const Traced& traced, ProcessGroup group) {
  const std::uint64_t bytes =
      piece.size() * static_cast<std::uint64_t>(ranks_.link->world_size(group));
  const CudaCopySpan span({.trace = traced.log,
                           .track = TraceTrack::kLink,
                           .phase = "gather",
                           .name = traced.name,
                           .bytes = bytes},
                          stream_.stream());
  return ranks_.link->all_gather(piece, {place, bytes},
                                 {.group = group, .stream = stream_.stream()});
}

void CudaRankLink::make_scratch(std::uint64_t bytes, const offload::SumOrder& order) {
  scratch_ = at::empty({static_cast<std::int64_t>(bytes / sizeof(float))},
                       at::TensorOptions().dtype(at::kFloat).device(current_gpu()));
  exchange_.emplace(ranks_, order);
}

Result<float*> CudaRankLink::reduce(std::span<float* const> roots, std::uint64_t elements,
                                    const Traced& traced) {
  const std::uint64_t world = world_of(ranks_);
  const std::uint64_t piece = elements / world;
  const std::uint64_t at_once = static_cast<std::uint64_t>(scratch_.nbytes()) /
                                exchange_->exchange_bytes(offload::kShardAlignment) *
                                offload::kShardAlignment;
  SLUICE_CHECK(elements % world == 0 && at_once > 0, "a gathered unit, and room for an exchange");
  float* const own = roots.front() + static_cast<std::uint64_t>(ranks_.part.rank) * piece;
  const c10::cuda::CUDAStreamGuard guard(stream_);
  const CudaCopySpan span({.trace = traced.log,
                           .track = TraceTrack::kLink,
                           .phase = "reduce",
                           .name = traced.name,
                           .bytes = exchange_->exchange_bytes(piece)},
                          stream_.stream());
  for (std::uint64_t first = 0; first < piece; first += at_once) {
    SLUICE_RETURN_IF_ERROR(exchange_->reduce({.roots = roots,
                                              .piece = piece,
                                              .first = first,
                                              .count = std::min(at_once, piece - first),
                                              .received = static_cast<float*>(scratch_.data_ptr()),
                                              .sum = own + first,
                                              .stream = stream_.stream()},
                                             kernels_on(stream_.stream())));
  }
  return own;
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
