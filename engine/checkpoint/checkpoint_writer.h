// CheckpointWriter: one checkpoint, from the state as it arrives to a folder that is either whole
// or does not count. FORMAT.md says what is in it.
//
//   auto writer = CheckpointWriter::begin(queue, folder.path_of(step), specs, {});
//   for each range, in flat order: writer->append({.parameter = name, ...});
//   writer->commit(state);
//
// Three families of files - master weights and both moments - are written concurrently, chunk by
// chunk from a few staging buffers; a chunk's checksum is taken when it is full, while it is in the
// cache. begin() takes all the space on the disk. The manifest is written last, when everything
// else is durable: its presence is what makes the checkpoint count, whatever happens before.
//
// All of it is written to `<folder>.new`, which counts once it has its manifest, and then takes the
// place of `<folder>`; settle_replacement() finishes what a kill left undone. So a folder that has
// its own name and no manifest was not left by a save.
//
// With options.replace an existing complete checkpoint stays until the new one is whole. What
// cannot be read there is set aside, with a warning, and never removed.
//
// Memory:  staging_bytes(options), whatever the size of the model; for bf16 moments 64 KiB more.
// Threads: one at a time; the queue's other users are not disturbed. `queue` must outlive it.
// Errors:  after a failed append() or commit() the writer can only be destroyed. Destroyed without
//          a successful commit() it removes what it made. begin(): kNoSpace leaves nothing behind;
//          kAlreadyExists without options.replace.
#pragma once

#include <array>
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
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

class ChunkedWriter;
struct ShardPlan;

// Equally long; elements [first_element, first_element + master.size()) of one parameter.
struct StateValues {
  std::string_view parameter;
  std::uint64_t first_element = 0;
  std::span<const float> master;
  std::span<const float> exp_avg;
  std::span<const float> exp_avg_sq;
};

class CheckpointWriter {
 public:
  struct Options {
    // Of tensor data in one file; a larger parameter has a shard of its own.
    std::uint64_t max_shard_bytes = std::uint64_t{4} << 30;
    std::uint64_t chunk_bytes = kDefaultChunkBytes;  // a multiple of 4096
    DType moments = DType::kF32;                     // or kBF16, of moments that it represents
    int chunks_in_flight = 4;                        // of each of the three files; at least 2
    bool replace = false;
  };
  static std::uint64_t staging_bytes(const Options& options);

  // `parameters`: each under its name, in flat order; stored as F32 whatever their dtype, and their
  // moments as the options say.
  static Result<std::unique_ptr<CheckpointWriter>> begin(aio::IoQueue& queue,
                                                         const std::string& folder,
                                                         std::span<const TensorSpec> parameters,
                                                         const Options& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The next values in flat order. kInvalidArgument says which come next instead, or which moment
  // would lose bits.
  Status append(const StateValues& values);
  // After the last one: durable when it returns ok. kInvalidArgument says what is missing.
  Status commit(const CheckpointState& state);

  std::uint64_t total_bytes() const { return total_bytes_; }  // of the files, except the manifest

 private:
  CheckpointWriter(aio::IoQueue& queue, std::string folder, const Options& options);
  Status prepare(std::span<const TensorSpec> parameters);
  Status take_folder();
  Status take_space();
  Status begin_shard();
  Status skip_full();
  Status check_next(const StateValues& values) const;
  Status append_to(Family family, std::span<const float> values);
  Status write_index();
  Status publish(const CheckpointState& state);
  Status fail(Status status);
  std::string path_in(std::string_view name) const;

  aio::IoQueue& queue_;
  const std::string folder_;  // the checkpoint's when all is done
  const Options options_;
  const std::string target_;  // where it is written
  bool made_ = false;         // something in target_ is ours to remove
  bool committed_ = false;
  aio::PageMemory staging_;
  std::vector<ShardPlan> shards_;
  std::uint64_t total_bytes_ = 0;
  CheckpointManifest manifest_;      // grows as files are finished
  std::vector<std::byte> narrowed_;  // bf16 moments on their way

  std::array<std::unique_ptr<ChunkedWriter>, kFamilies.size()> files_;  // of the current shard
  std::size_t shard_ = 0;
  std::size_t tensor_ = 0;  // in the shard
  std::uint64_t elements_done_ = 0;
  Status status_;
};

}  // namespace sluice::engine
