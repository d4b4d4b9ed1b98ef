// CheckpointReader: reads the state in a checkpoint, by parameter and element.
//
// Every chunk is checked against the manifest before any of its bytes is returned: read() returns
// what was appended, bit for bit, or an error. Headers are read in checked chunks too. Reading in
// flat order is one pass over the files of one rank, with chunks read ahead. Any other order works,
// one chunk at a time.
//
// With files of several ranks, only those that contain part of the requested range are opened, and
// only when it is requested. So is the store of a checkpoint with records, which may belong to a
// run that trains: if it saves a newer checkpoint, reading this one fails with kCorrupt.
//
// Memory:  chunks_ahead chunks per field, allocated at open, and the tensors' offsets in their
//          files. With records, also that of StoredStateReader.
// Threads: one at a time. `queue` must outlive this.
// Files:   one per field is open at a time.
// Errors:  name the file and the bytes in it. kNotFound: no manifest, so the checkpoint is invalid,
//          or no such parameter. kCorrupt: damaged, truncated, or a file of another checkpoint.
//          A store that is not there is kIo.
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
class StoredStateReader;

class CheckpointReader {
 public:
  struct Options {
    bool moments = true;   // false: their files are not opened, and only read_master() works
    int chunks_ahead = 4;  // for each field; at least 1
  };

  // `folder`: one checkpoint's, such as "runs/a/checkpoints/step-000000012".
  static Result<std::unique_ptr<CheckpointReader>> open(aio::IoQueue& queue,
                                                        const std::string& folder,
                                                        const Options& options);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const CheckpointState& state() const { return manifest_.state; }
  const CheckpointManifest& manifest() const { return manifest_; }
  // Reads the headers of all files that were not read yet, and checks them against the manifest.
  Status check_headers();
  // In flat order.
  std::span<const TensorInfo> parameters() const { return parameters_; }
  const TensorInfo* find(std::string_view parameter) const;  // nullptr: no such parameter

  Status read(std::string_view parameter, const offload::StateSlice& to);
  // Reads only the weights; does not touch the moments' files.
  Status read_master(std::string_view parameter, std::uint64_t first_element,
                     std::span<float> values);

 private:
  struct InRecord {
    std::size_t part = 0;              // of the manifest's records
    std::uint64_t record_element = 0;  // at which the piece begins
  };
  struct PieceLocation {  // location of a parameter's piece in each file of a shard
    StatePiece piece;
    std::size_t shard = 0;
    std::size_t tensor = 0;               // in the shard's files
    std::optional<InRecord> record = {};  // in the store instead
  };
  // Values of every field; empty: not wanted.
  using Fields = std::array<std::span<float>, offload::kStateFields.size()>;
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
  // Sets offsets_. In a checkpoint of several ranks, a header must have exactly the manifest's
  // tensors.
  Status know_offsets(ChunkedReader& file, std::size_t field, std::size_t shard);
  Result<ChunkedReader*> file_of(std::size_t field, std::size_t shard);
  Status read_fields(std::string_view parameter, std::uint64_t first_element, const Fields& to);
  Status read_piece(std::size_t field, const PieceLocation& location, std::uint64_t first_element,
                    std::span<float> values);
  Status read_record(const PieceLocation& location, std::uint64_t first_element, const Fields& to);
  std::size_t fields() const { return options_.moments ? offload::kStateFields.size() : 1; }

  aio::IoQueue& queue_;
  const std::string folder_;
  const Options options_;
  CheckpointManifest manifest_;
  aio::PageMemory staging_;
  std::vector<TensorInfo> parameters_;
  std::vector<std::vector<PieceLocation>> locations_;  // of each parameter, in ascending order
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into both
  // Per file, once its header was read.
  std::array<std::vector<std::optional<TensorOffsets>>, offload::kStateFields.size()> offsets_;
  std::array<std::unique_ptr<ChunkedReader>, offload::kStateFields.size()> files_;
  std::array<std::size_t, offload::kStateFields.size()> open_shards_{};
  std::unique_ptr<StoredStateReader> records_;  // null until it is needed
};

}  // namespace sluice::engine
