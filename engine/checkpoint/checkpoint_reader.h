// CheckpointReader: the state in a checkpoint, by parameter and element.
//
// Every chunk is checked against the manifest before any byte of it is handed out: read() returns
// what was appended, bit for bit, or an error. Headers are read as such chunks too, so they say
// what was written. Reading in flat order is one pass over the files of one rank with chunks read
// ahead; any other order works, one chunk at a time.
//
// Of several ranks' files only those are looked at in which something of what is asked for lies,
// when it is asked for.
//
// Memory:  chunks_ahead chunks per field, taken at open, and where tensors lie in their files.
// Threads: one at a time. `queue` must outlive it.
// Files:   one per field is open at a time.
// Errors:  name the file, and the bytes in it. kNotFound: no manifest, so the checkpoint does not
//          count, or no such parameter. kCorrupt: damaged, cut short, or another checkpoint's file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

class ChunkedReader;

class CheckpointReader {
 public:
  struct Options {
    bool moments = true;   // false: their files are not looked at, and only read_master() works
    int chunks_ahead = 4;  // of each field; at least 1
  };

  // `folder`: of one checkpoint, "runs/a/checkpoints/step-000000012".
  static Result<std::unique_ptr<CheckpointReader>> open(aio::IoQueue& queue,
                                                        const std::string& folder,
                                                        const Options& options);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const CheckpointState& state() const { return manifest_.state; }
  const CheckpointManifest& manifest() const { return manifest_; }
  // Reads the headers of all files, as far as that was not done: whether each has what it should.
  Status check_headers();
  // In flat order.
  std::span<const TensorInfo> parameters() const { return parameters_; }
  const TensorInfo* find(std::string_view parameter) const;  // nullptr: there is none

  Status read(std::string_view parameter, const offload::StateSlice& to);
  // Only the weights; does not touch the moments' files.
  Status read_master(std::string_view parameter, std::uint64_t first_element,
                     std::span<float> values);

 private:
  struct Place {  // of a piece of one parameter, in each file of a shard
    StatePiece piece;
    std::size_t shard = 0;
    std::size_t tensor = 0;  // in the shard's files
  };
  using TensorOffsets = std::vector<std::uint64_t>;  // in one file
  struct Header {
    std::vector<TensorInfo> tensors;
    std::uint64_t data_offset_bytes = 0;

    TensorOffsets offsets() const;
  };

  CheckpointReader(aio::IoQueue& queue, std::string folder, const Options& options);
  Status prepare();
  Status add_shard(std::size_t shard);
  Status add_shards();
  void add_pieces();
  Result<Header> read_header(ChunkedReader& file, std::size_t field) const;
  // That of a part has just what the manifest says.
  Status know_offsets(ChunkedReader& file, std::size_t field, std::size_t shard);
  Result<ChunkedReader*> file_of(std::size_t field, std::size_t shard);
  Status read_field(std::size_t field, std::string_view parameter, std::uint64_t first_element,
                    std::span<float> values);
  Status read_piece(std::size_t field, const Place& place, std::uint64_t first_element,
                    std::span<float> values);
  std::size_t fields() const { return options_.moments ? offload::kStateFields.size() : 1; }

  aio::IoQueue& queue_;
  const std::string folder_;
  const Options options_;
  CheckpointManifest manifest_;
  aio::PageMemory staging_;
  std::vector<TensorInfo> parameters_;
  std::vector<std::vector<Place>> places_;  // of each parameter, in ascending order
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into both
  // Of each file, once its header was read.
  std::array<std::vector<std::optional<TensorOffsets>>, offload::kStateFields.size()> offsets_;
  std::array<std::unique_ptr<ChunkedReader>, offload::kStateFields.size()> files_;
  std::array<std::size_t, offload::kStateFields.size()> open_shards_{};
};

}  // namespace sluice::engine
