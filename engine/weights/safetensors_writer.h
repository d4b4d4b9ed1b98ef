// SafetensorsWriter: fp32 tensors into a safetensors file, or a sharded set with its index, as they
// come.
//
// Everything is declared first, so the headers are known before the first value; values are then
// appended in the order of declaration, in ranges of any length, and converted on their way. The
// same tensors, options and values give the same bytes.
//
// Files are written as `<name>.new`; finish() makes them durable, then gives them their names, an
// index last. Before that nothing at `path` has changed; a power loss inside finish() leaves each
// name old or new, whole. So one file is replaced atomically, and a set belongs into a folder of
// its own. A writer that is destroyed unfinished removes what it made.
//
// Memory:  options.staging_bytes, whatever the size of the tensors.
// Threads: one at a time. `queue` must outlive the writer.
// Errors:  create() says what is wrong with the declaration, or that the disk has no room. After a
//          failed append() the writer can only be destroyed: every later call returns that error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/sequential_writer.h"

namespace sluice::engine {

class SafetensorsWriter {
 public:
  struct Options {
    // Ends in .safetensors. Of several shards, "x/model.safetensors" is written as
    // x/model-00001-of-00003.safetensors and so on, and x/model.safetensors.index.json.
    std::string path;
    // Of tensor data; a tensor that is larger has a shard of its own. 0: all in one file.
    std::uint64_t max_shard_bytes = 0;
    Metadata metadata = {{"format", "pt"}};  // Hugging Face's loaders want this key
    std::uint64_t staging_bytes = 16 << 20;  // at least 64 KiB
  };

  // Tensors are F16, BF16, F32 or F64.
  static Result<std::unique_ptr<SafetensorsWriter>> create(aio::IoQueue& queue, Options options,
                                                           std::span<const TensorSpec> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next values of tensor `name`, which is the one that is being written, or the next.
  // kInvalidArgument says which values come next instead.
  Status append(std::string_view name, std::span<const float> values);
  // After the last value of the last tensor; kInvalidArgument says what is missing.
  Status finish();

  std::uint64_t total_bytes() const { return total_bytes_; }  // of all files, but the index
  std::vector<std::string> paths() const;                     // of the files once they are finished

 private:
  struct Shard {
    std::string path;
    std::vector<TensorInfo> tensors;
    std::string header;
    std::uint64_t file_bytes = 0;
  };

  SafetensorsWriter(aio::IoQueue& queue, Options options, aio::PageMemory staging,
                    std::vector<Shard> shards);
  static Result<std::vector<Shard>> plan(const Options& options,
                                         std::span<const TensorSpec> tensors);
  static std::string fresh_path(const Shard& shard) { return shard.path + ".new"; }

  const TensorInfo& tensor() const { return shards_[shard_].tensors[tensor_]; }
  Status check_room() const;
  Status begin_shard();
  Status skip_full();
  Status put(std::span<const float> values);
  Status publish();
  Status fail(Status status);

  aio::IoQueue& queue_;
  Options options_;
  aio::PageMemory staging_;
  std::vector<Shard> shards_;
  std::uint64_t total_bytes_ = 0;

  std::size_t shard_ = 0;            // the place of the next value; shards_.size(): behind the last
  std::size_t tensor_ = 0;           // of that shard
  std::uint64_t elements_done_ = 0;  // of that tensor
  std::unique_ptr<SequentialWriter> file_;
  std::size_t files_made_ = 0;  // under their fresh names
  bool finished_ = false;
  Status status_;
};

}  // namespace sluice::engine
