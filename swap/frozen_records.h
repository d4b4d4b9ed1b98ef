// FrozenRecords: reads a frozen generation of a store chunk by chunk, and checks each chunk. It
// takes no lock, because the store's run may be alive: that run never writes to the frozen places
// until it has frozen another generation.
//
// Consecutive chunks of a record are read ahead, for two records at a time: state and parameters.
//
// Memory:  four windows of 8 chunks, and two headers.
// Threads: one at a time; the queue may have other users. `queue` must outlive this.
// Errors:  kNotFound: there is no such store. kCorrupt: another one is there, or the named record
//          is damaged or of another generation. That is so after the run has frozen a newer one.
//          Any chunk may be tried again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "aio/striped_file.h"
#include "swap/frozen_store.h"
#include "swap/store_layout.h"

namespace sluice::swap {

class FrozenRecords {
 public:
  static Result<std::unique_ptr<FrozenRecords>> open(aio::IoQueue& queue,
                                                     const FrozenStore& frozen);
  ~FrozenRecords();
  FrozenRecords(const FrozenRecords&) = delete;
  FrozenRecords& operator=(const FrozenRecords&) = delete;

  const StoreLayout& layout() const { return layout_; }

  // `to` has the chunk's size: chunk_bytes, or the rest of the record's payload for the last one.
  Status read_chunk(RecordId record, int chunk, std::span<std::byte> to);

 private:
  class Stream;

  FrozenRecords(aio::IoQueue& queue, const FrozenStore& frozen, StoreLayout layout,
                std::unique_ptr<aio::StripedFile> data);
  Result<Stream*> stream_of(RecordId record);

  aio::IoQueue& queue_;
  const FrozenStore frozen_;
  const StoreLayout layout_;
  const std::unique_ptr<aio::StripedFile> data_;
  std::array<std::unique_ptr<Stream>, 2> streams_;  // the most recently used first
};

// The layout of the store, if it is the one that was frozen. Errors as above.
Result<StoreLayout> layout_of(aio::IoQueue& queue, const FrozenStore& store);

}  // namespace sluice::swap
