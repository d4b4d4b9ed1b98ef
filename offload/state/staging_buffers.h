// StagingBuffers: two buffers in host memory through which the state of tiles goes to a GPU and
// back: while one is copied, the other is worked on. A buffer's fields lie consecutively, each
// whole, as on the GPU, so that a field of many tiles is one copy.
//
// Memory:  bytes_of(form, tiles), for as long as it lives; pinned where the hook can, which only
//          makes copies faster.
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
  // Of both, parameters included.
  static std::uint64_t bytes_of(StateForm form, std::uint64_t tiles);
  // Of `tiles` whole tiles each. `pin` may be empty.
  static Result<std::unique_ptr<StagingBuffers>> create(StateForm form, std::uint64_t tiles,
                                                        const aio::PinHook& pin);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  std::uint64_t elements() const { return elements_; }  // of one buffer
  // Of the two buffers, in turn.
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
