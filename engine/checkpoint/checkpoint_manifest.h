// CheckpointManifest: checkpoint.json, which describes what was saved and contains the checksum of
// every chunk of every file. FORMAT.md lists the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/checkpoint/state_pieces.h"
#include "engine/checkpoint/stored_records.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

inline constexpr std::uint64_t kDefaultChunkBytes = 4 << 20;
inline constexpr std::uint64_t kMinChunkBytes = 4096;
inline constexpr std::uint64_t kMaxChunkBytes = 64 << 20;

// The stored dtype of a field, for moments stored as `moments`.
constexpr DType stored_dtype(const offload::StateField& field, DType moments) {
  return field.role == offload::StateField::Role::kMaster ? DType::kF32 : moments;
}

struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> chunks;  // checksums; the last chunk may be short

  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

struct CheckpointManifest {
  CheckpointState state;
  std::uint64_t parameters = 0;  // number of tensors in the model
  std::uint64_t elements = 0;    // of all parameters
  DType moments = DType::kF32;   // dtype of all moments' files: kF32 or kBF16
  std::uint64_t chunk_bytes = kDefaultChunkBytes;
  // The shards in order, field by field of offload::kStateFields, then the weights' index (if one
  // rank wrote the checkpoint). A file's index in this list is part of its chunks' checksums.
  std::vector<StoredFile> files;
  int world = 1;  // number of ranks that wrote it
  // In parts: all parameters in flat order, as F32, and the pieces in each shard, in the order of
  // its files' tensors. Otherwise the files contain this.
  std::vector<TensorSpec> tensors = {};
  std::vector<StatePieces> pieces = {};
  // One rank only: the state that stayed in the run's store. There may be no files then.
  std::optional<StoredRecords> records = {};

  std::uint64_t total_bytes() const;  // of all files and records
  std::uint64_t shards() const {
    return files.size() / offload::kStateFields.size();
  }  // of each field
  // Whether the state is in pieces: of several ranks, or with records.
  bool in_parts() const { return world > 1 || records.has_value(); }
  DType dtype_of(std::size_t field) const {
    return stored_dtype(offload::kStateFields[field], moments);
  }

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// The place of one chunk. A chunk's checksum covers this and its bytes.
struct CheckpointChunk {
  std::uint64_t file = 0;  // its index in the manifest
  std::uint64_t offset_bytes = 0;
};
std::uint64_t checkpoint_hash(std::span<const std::byte> bytes, const CheckpointChunk& place);

std::string to_text(const CheckpointManifest& manifest);
// kInvalidArgument if a checkpoint of these parameters with this state would have a manifest larger
// than the size limit for reading. `records`: the number of records that stay in a store.
Status check_manifest_room(const CheckpointState& state, std::span<const TensorSpec> parameters,
                           std::size_t records = 0);
// For any bytes. kCorrupt, or kNewerVersion for a later format version, as one sentence without the
// file's name. It accepts only what to_text() writes: equivalent text in another form counts as
// damaged too.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text);

// Reads the manifest in a checkpoint's folder. kNotFound: there is none. kCorrupt and kNewerVersion
// name the file.
Result<CheckpointManifest> read_checkpoint_manifest(aio::IoQueue& queue, const std::string& folder);

}  // namespace sluice::engine
