// CudaRankLink: what several ranks exchange of their GPUs' memory. All of it, and what updates
// shards on the GPU, goes on one stream beside the one that computes: so it has one order on every
// rank, and an update is done before its unit is gathered.
//
// Memory:  a scratch buffer for exchanges, as SinkFootprint::exchanged_bytes() counts it.
// Threads: the one that trains; all ranks make the same calls in the same order.
// Errors:  as from Communicator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

  // What is told to a trace of an exchange.
  struct Traced {
    TraceLog* log = nullptr;
    const char* name = "";
  };
  // `place` gets the pieces of all ranks, each of piece.size(); `piece` is this rank's, and may be
  // where it belongs already.
  Status gather(std::span<const std::byte> piece, std::byte* place, const Traced& traced);

  // Before the first reduce(): for sums that are added in that order.
  void make_scratch(std::uint64_t bytes, const offload::SumOrder& order);
  // Of this rank's roots (SumOrder::roots()) of a whole unit's sum, each with the padding of
  // shards, `elements` in all: adds up the ranks' sums of this rank's piece. Returns where the
  // piece lies in the first root, of which nothing else is left.
  Result<float*> reduce(std::span<float* const> roots, std::uint64_t elements,
                        const Traced& traced);

 private:
  void add_up(float* to, std::uint64_t elements);

  const RankLink ranks_;
  c10::cuda::CUDAStream stream_;
  at::Tensor scratch_;
  offload::SumOrder order_;
  std::vector<offload::SumOrder::Addition> additions_;
};

}  // namespace sluice::engine
