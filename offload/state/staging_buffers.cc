#include "offload/state/staging_buffers.h"

#include <utility>

#include "aio/log.h"

namespace sluice::offload {

std::uint64_t StagingBuffers::bytes_of(ParamForm form, std::uint64_t tiles) {
  return 2 * tiles * kTileElements *
         static_cast<std::uint64_t>(state_bytes_per_element(form) + param_bytes_per_element(form));
}

Result<std::unique_ptr<StagingBuffers>> StagingBuffers::create(ParamForm form, std::uint64_t tiles,
                                                               const aio::PinHook& pin) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, aio::PageMemory::map(bytes_of(form, tiles), true));
  return std::unique_ptr<StagingBuffers>(new StagingBuffers(form, tiles, std::move(memory), pin));
}

StagingBuffers::StagingBuffers(ParamForm form, std::uint64_t tiles, aio::PageMemory memory,
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
  std::byte* state = param + elements_ * static_cast<std::uint64_t>(param_bytes_per_element(form_));
  StateTile fields;
  if (form_ == ParamForm::kSplit) {
    fields.lo = reinterpret_cast<std::uint16_t*>(state);
    state += elements_ * sizeof(std::uint16_t);
  } else if (form_ != ParamForm::kFp32) {
    fields.master = reinterpret_cast<float*>(state);
    state += elements_ * sizeof(float);
  }
  fields.m = reinterpret_cast<float*>(state);
  fields.v = fields.m + elements_;
  return tile_arrays(form_, fields, param);
}

}  // namespace sluice::offload
