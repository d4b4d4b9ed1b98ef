// SafetensorsWriter: writes fp32 tensors to a safetensors file, or to a sharded set with its index,
// as they arrive.
//
// All tensors are declared first, so the headers are known before the first value. Values are then
// appended in the order of declaration, in ranges of any length, and converted. The same tensors,
// options and values give the same bytes.
//
// Files are written as `<name>.new`; finish() makes them durable, then renames them, an index last.
// Nothing at `path` changes before that; a power loss during finish() leaves each name with its old
// or its new file, complete. One file is therefore replaced atomically, but a set should have a
// folder of its own. The destructor removes the files of an unfinished writer.
//
// Memory:  options.staging_bytes for any tensor size.
// Threads: one at a time. `queue` must outlive the writer.
// Errors:  create() reports an invalid declaration or a full disk. After a failed append() the
//          writer can only be destroyed: every later call returns that error.
//          failed append() the writer can only be destroyed: every later call returns that error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/direct_file.h"
#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// SequentialWriter: writes bytes in order to one new file of known size. Staging memory has two
// halves: one is filled while the other is written.
//
// create() reserves the space, so that a full disk is detected early.
//
// Memory:  `staging`: page-aligned whole pages, which must outlive the writer.
// Threads: one at a time.
// Errors:  the first error is kept: every later call returns it. The caller removes an unfinished
//          file.
class SequentialWriter {
 public:
  // Replaces the file at `path`.
  static Result<std::unique_ptr<SequentialWriter>> create(aio::IoQueue& queue,
                                                          const std::string& path,
                                                          std::uint64_t size_bytes,
                                                          std::span<std::byte> staging);
  ~SequentialWriter();
  SequentialWriter(const SequentialWriter&) = delete;
  SequentialWriter& operator=(const SequentialWriter&) = delete;

  // Space for the next bytes: at least one byte until the file is full, then none.
  Result<std::span<std::byte>> room();
  // Accepts the first `count_bytes` of room().
  Status commit(std::uint64_t count_bytes);
  Status write(std::span<const std::byte> bytes);

  // Once the file is full: waits for all writes, and makes the file durable.
  Status finish();

 private:
  struct Half {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
  };

  SequentialWriter(aio::IoQueue& queue, std::unique_ptr<aio::DirectFile> file,
                   std::span<std::byte> staging);
  Status wait(Half& half);

  aio::IoQueue& queue_;
  std::unique_ptr<aio::DirectFile> file_;
  std::array<Half, 2> halves_;
  std::size_t filling_ = 0;            // index of the half
  std::uint64_t filled_bytes_ = 0;     // in that half
  std::uint64_t submitted_bytes_ = 0;  // in the file
  Status status_;
};

class SafetensorsWriter {
 public:
  struct Options {
    // Ends in .safetensors. With several shards, "x/model.safetensors" becomes
    // x/model-00001-of-00003.safetensors and so on, and x/model.safetensors.index.json.
    std::string path;
    // Maximal tensor data in a file; a larger tensor has a shard of its own. 0: all in one file.
    std::uint64_t max_shard_bytes = 0;
    Metadata metadata = {{"format", "pt"}};  // Hugging Face's loaders require this key
    std::uint64_t staging_bytes = 16 << 20;  // at least 64 KiB
  };

  // Tensors are F16, BF16, F32 or F64.
  static Result<std::unique_ptr<SafetensorsWriter>> create(aio::IoQueue& queue, Options options,
                                                           std::span<const TensorSpec> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Appends the next values of tensor `name`, which must be the current tensor or the next one.
  // kInvalidArgument names the values expected instead.
  Status append(std::string_view name, std::span<const float> values);
  // Call it after the last value of the last tensor; kInvalidArgument says what is missing.
  Status finish();

  std::uint64_t total_bytes() const { return total_bytes_; }  // of all files except the index
  std::vector<std::string> paths() const;                     // the final paths

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

  std::size_t shard_ = 0;            // the next value's shard; shards_.size() at the end
  std::size_t tensor_ = 0;           // in that shard
  std::uint64_t elements_done_ = 0;  // in that tensor
  std::unique_ptr<SequentialWriter> file_;
  std::size_t files_made_ = 0;  // under their temporary names
  bool finished_ = false;
  Status status_;
};

}  // namespace sluice::engine
