// ParamOffloader's data for each unit and each buffer; included only by its own sources.
#pragma once

#include <cstdint>
#include <span>

#include "offload/params/param_offloader.h"
#include "swap/state_store.h"

namespace sluice::offload {

struct ParamOffloader::Unit {
  enum class Content : std::uint8_t {
    kAbsent,
    kReading,   // in flight
    kLoaded,    // not checked yet
    kChecking,  // by a thread that has access
    kPresent,
    kWriting,  // present, and its write is in flight
  };
  Content content = Content::kAbsent;
  bool filled = false;  // has been replaced at least once, so there is content to read
  bool updating = false;
  int readers = 0;
  int updaters_waiting = 0;
  std::uint64_t generation = 0;  // the record's generation when it was last sealed
};

// A buffer, and the unit that occupies it.
struct ParamOffloader::Slot {
  ParamOffloader* owner = nullptr;
  int unit = ParamCache::kNone;
  std::span<std::byte> memory;
  swap::RecordIo io;
};

}  // namespace sluice::offload
