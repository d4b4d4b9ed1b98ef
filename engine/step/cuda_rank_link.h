// CudaRankLink: exchanges between ranks of the memory of their GPUs. All exchanges, and all updates
// of shards on the GPU, are enqueued on one stream, separate from the one that computes. Their
// order is therefore the same on every rank, and a unit is updated before it is gathered.
//
// Memory:  a scratch buffer for exchanges, as SinkFootprint::exchanged_bytes() counts it.
// Threads: the training thread; all ranks make the same calls in the same order.
// Errors:  those of Communicator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "aio/result.h"
#include "engine/observe/trace_log.h"
#include "engine/step/rank_reduction.h"
#include "offload/sum_order.h"

namespace sluice::engine {

class CudaRankLink {
 public:
  explicit CudaRankLink(const RankLink& ranks);
  ~CudaRankLink();
  CudaRankLink(const CudaRankLink&) = delete;
  CudaRankLink& operator=(const CudaRankLink&) = delete;

  const RankLink& ranks() const { return ranks_; }
  const c10::cuda::CUDAStream& stream() const { return stream_; }

  // The trace of an exchange, and the name it gets there.
  struct Traced {
    TraceLog* log = nullptr;
    const char* name = "";
  };
  // Gathers the pieces of all ranks of the group, each of piece.size(), into `place`. `piece` is
  // this rank's, and may already be in its position there.
  Status gather(std::span<const std::byte> piece, std::byte* place, const Traced& traced,
                ProcessGroup group = ProcessGroup::kWorld);

  // Allocates the scratch buffer for reduce(), which adds in this order. Call it before the first
  // reduce().
  void make_scratch(std::uint64_t bytes, const offload::SumOrder& order);
  // Sums this rank's piece over all ranks. `roots` (SumOrder::roots() of them) are this rank's sums
  // of a whole unit, each `elements` with the padding of shards. Returns the address of the piece
  // in the first root; the rest of that root is overwritten.
  Result<float*> reduce(std::span<float* const> roots, std::uint64_t elements,
                        const Traced& traced);

 private:
  const RankLink ranks_;
  c10::cuda::CUDAStream stream_;
  at::Tensor scratch_;
  std::optional<SumExchange> exchange_;
};

}  // namespace sluice::engine
