#include "offload/state/staging_buffers.h"

#include <utility>

#include "aio/log.h"

namespace sluice::offload {

std::uint64_t StagingBuffers::bytes_of(StateForm form, std::uint64_t tiles) {
  return 2 * tiles * kTileElements *
         static_cast<std::uint64_t>(state_bytes_per_element(form) +
                                    param_bytes_per_element(form.param));
}

Result<std::unique_ptr<StagingBuffers>> StagingBuffers::create(StateForm form, std::uint64_t tiles,
                                                               const aio::PinHook& pin) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, aio::PageMemory::map(bytes_of(form, tiles), true));
  return std::unique_ptr<StagingBuffers>(new StagingBuffers(form, tiles, std::move(memory), pin));
}

StagingBuffers::StagingBuffers(StateForm form, std::uint64_t tiles, aio::PageMemory memory,
                               const aio::PinHook& pin)
    : form_(form), elements_(tiles * kTileElements), memory_(std::move(memory)), pin_(pin) {
  if (!pin_.pin) return;
  const Status pinned = pin_.pin(memory_.bytes());
  pinned_ = pinned.ok();
  if (!pinned_) log::warning_once("pin-staging", pinned.error().message());
}

StagingBuffers::~StagingBuffers() {
  if (pinned_) pin_.unpin(memory_.bytes());
}

AdamwArrays StagingBuffers::arrays(std::uint64_t turn) const {
  std::byte* const param = memory_.data() + turn % 2 * (memory_.size_bytes() / 2);
  std::byte* const master =
      param + elements_ * static_cast<std::uint64_t>(param_bytes_per_element(form_.param));
  std::byte* const m = master + elements_ * master_bytes_per_element(form_.param);
  const StateTile fields =
      fields_at(form_, master, m, m + elements_ * element_bytes(form_.moments));
  return tile_arrays(form_, fields, param);
}

}  // namespace sluice::offload
