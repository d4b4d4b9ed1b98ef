// PartWriter: writes one writer's part of a checkpoint, its shards of all fields of the state, into
// the folder that the CheckpointWriter created.
//
// The files of a shard are written concurrently, chunk by chunk from a few staging buffers. A chunk
// is hashed as soon as it is full, while it is in the cache. begin() allocates all disk space. The
// part is not valid until the CheckpointWriter, in this process or another, writes the manifest.
// That writer also removes the remains of a failed part.
//
// Memory:  staging_bytes(options) for any model size; 64 KiB more for bf16 moments.
// Threads: one at a time; the queue may have other users. `queue` must outlive this.
// Errors:  name the file; after a failed append() the writer can only be destroyed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/shard_plan.h"

namespace sluice::engine {

class ChunkedWriter;

struct CheckpointOptions {
  // Maximal tensor data in one file; a larger parameter has a shard of its own.
  std::uint64_t max_shard_bytes = std::uint64_t{4} << 30;
  std::uint64_t chunk_bytes = kDefaultChunkBytes;  // a multiple of 4096
  DType moments = DType::kF32;                     // kBF16 requires moments that bf16 represents
  int chunks_in_flight = 4;                        // per field's file; at least 2
  bool replace = false;

  ShardOptions shards() const { return {.max_bytes = max_shard_bytes, .moments = moments}; }
};
// kInvalidArgument names the invalid option.
Status check_options(const CheckpointOptions& options);

class PartWriter {
 public:
  static std::uint64_t staging_bytes(const CheckpointOptions& options);

  // For the writer with this number. `folder`: the checkpoint's final name. Files are written to
  // its replacement (.new), which must exist.
  static Result<std::unique_ptr<PartWriter>> begin(aio::IoQueue& queue, const std::string& folder,
                                                   std::shared_ptr<const CheckpointPlan> plan,
                                                   int writer, const CheckpointOptions& options);
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Appends the next values of the writer's pieces, in order. kInvalidArgument names the values
  // expected instead, or the moment that would lose bits.
  Status append(std::string_view parameter, const offload::ConstStateSlice& state);
  // After the last append(): makes all files durable. kInvalidArgument says what is missing.
  Status finish();
  // After finish(): the checksums of its files, field by field, and shard by shard within a field.
  std::vector<std::uint64_t> checksums() const;

 private:
  PartWriter(aio::IoQueue& queue, std::string folder, std::shared_ptr<const CheckpointPlan> plan,
             int writer, const CheckpointOptions& options);
  Status take_space();
  Status begin_shard();
  Status skip_full();
  Status check_next(std::string_view parameter, const offload::ConstStateSlice& state) const;
  Status append_to(std::size_t field, std::span<const float> values);
  Status fail(Status status);
  bool is_full() const { return shard_ == end_shard_; }
  const StatePiece& next_piece() const { return plan_->shards[shard_].pieces[tensor_]; }
  const std::string& next_name() const { return plan_->parameters[next_piece().parameter].name; }
  std::string path_of(const offload::StateField& field, std::size_t shard) const;

  aio::IoQueue& queue_;
  const std::string folder_;
  const std::shared_ptr<const CheckpointPlan> plan_;
  const CheckpointOptions options_;
  const std::size_t begin_shard_;
  const std::size_t end_shard_;
  aio::PageMemory staging_;
  std::vector<std::byte> narrowed_;  // bf16 moments to be written

  std::array<std::unique_ptr<ChunkedWriter>, offload::kStateFields.size()>
      files_;  // of the current shard
  std::size_t shard_;
  std::size_t tensor_ = 0;  // in the shard
  std::uint64_t elements_done_ = 0;
  std::array<std::vector<std::uint64_t>, offload::kStateFields.size()>
      checksums_;  // of the finished shards
  Status status_;
};

// The number of checksums of a writer's files.
std::uint64_t checksums_of(const CheckpointPlan& plan, int writer, std::uint64_t chunk_bytes);

}  // namespace sluice::engine
