// CudaUnitGather: gathers units in GPU memory as Gathering says: as they are or in 8 bits, and from
// the ranks of this host alone where they have a copy. All work is enqueued on the link's stream.
//
// Memory:  a buffer of SlotFootprint::pieces_bytes(), and this rank's parts of copies, of
//          copy_bytes() on the GPU or in RAM (pinned where the machine allows it).
// Threads: the training thread; all ranks make the same calls in the same order.
// Errors:  those of CudaRankLink; kInternal with CUDA's message. The constructor throws if there is
//          no memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "aio/page_memory.h"
#include "aio/result.h"
#include "engine/budget/gpu_plan.h"
#include "engine/device/cuda_host_copies.h"
#include "engine/step/cuda_rank_link.h"
#include "engine/step/unit_parameters.h"

namespace sluice::engine {

class CudaUnitGather {
 public:
  // All but `trace`, which may be null, must outlive it.
  CudaUnitGather(const ModelLayout& model, const CudaSlotOptions& options, CudaRankLink& link,
                 TraceLog* trace);
  ~CudaUnitGather();
  CudaUnitGather(const CudaUnitGather&) = delete;
  CudaUnitGather& operator=(const CudaUnitGather&) = delete;

  // `shard`: this rank's piece in the host's form, perhaps in its position in `place`. It is not
  // read if the host has a copy of the unit.
  Status gather(int unit, std::span<const std::byte> shard, std::byte* place);
  bool has_copy(int unit) const { return copies_.has(unit); }
  void invalidate() { copies_.clear(); }  // the units have changed

 private:
  Status gather_in_int8(int unit, std::span<const std::byte> shard, std::byte* place);
  Status gather_pieces(int unit, std::span<const std::byte> piece, std::byte* all);
  Status read_part(int unit, std::span<std::byte> to);
  Status write_part(int unit, std::span<const std::byte> from);
  Status copy(std::byte* to, std::span<const std::byte> from) const;

  const ModelLayout& model_;
  const CudaSlotOptions& options_;
  CudaRankLink& link_;
  TraceLog* const trace_;
  at::Tensor pieces_;  // a unit in 8 bits, as it is sent
  UnitCopies copies_;
  at::Tensor on_gpu_;       // this rank's parts of copies
  aio::PageMemory in_ram_;  // or here
  std::optional<CudaHostCopies> ram_copies_;
};

}  // namespace sluice::engine
