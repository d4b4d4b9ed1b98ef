// StagingBuffers: two buffers in host memory through which the state of tiles is copied to and from
// a GPU: while one is copied, the other is processed. A buffer's fields are stored one after
// another, each whole, as on the GPU, so that a field of many tiles is one copy.
//
// Memory:  bytes_of(form, tiles) during its lifetime; pinned if the hook can, which only makes
//          copies faster.
#pragma once

#include <cstdint>
#include <memory>

#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "offload/state/state_tiles.h"

namespace sluice::offload {

class StagingBuffers {
 public:
  // Bytes of both buffers, parameters included.
  static std::uint64_t bytes_of(StateForm form, std::uint64_t tiles);
  // Each buffer has `tiles` whole tiles. `pin` may be empty.
  static Result<std::unique_ptr<StagingBuffers>> create(StateForm form, std::uint64_t tiles,
                                                        const aio::PinHook& pin);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  std::uint64_t elements() const { return elements_; }  // in one buffer
  // The arrays of one buffer; the two take turns.
  AdamwArrays arrays(std::uint64_t turn) const;

 private:
  StagingBuffers(StateForm form, std::uint64_t tiles, aio::PageMemory memory,
                 const aio::PinHook& pin);

  const StateForm form_;
  const std::uint64_t elements_;
  aio::PageMemory memory_;
  const aio::PinHook pin_;
  bool pinned_ = false;
};

}  // namespace sluice::offload
