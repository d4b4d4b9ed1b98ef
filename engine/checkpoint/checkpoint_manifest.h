// CheckpointManifest: checkpoint.json, which says what was saved and has the checksum of every
// chunk of every file. FORMAT.md has the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/checkpoint/state_pieces.h"
#include "engine/weights/dtype.h"

namespace sluice::engine {

inline constexpr std::uint64_t kDefaultChunkBytes = 4 << 20;
inline constexpr std::uint64_t kMinChunkBytes = 4096;
inline constexpr std::uint64_t kMaxChunkBytes = 64 << 20;

// What a field is stored as, where moments are stored as that.
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
  std::uint64_t parameters = 0;  // how many tensors the model has
  std::uint64_t elements = 0;    // of all of them
  DType moments = DType::kF32;   // of all moments' files: or kBF16
  std::uint64_t chunk_bytes = kDefaultChunkBytes;
  // Shards in order, field by field of offload::kStateFields, then the weights' index (of one
  // rank's alone).
  // A file's number in this list is part of its chunks' checksums.
  std::vector<StoredFile> files;
  int world = 1;  // how many ranks wrote it
  // Of several ranks: all parameters in flat order, as F32, and of each shard what lies in it, in
  // the order of its files' tensors. Of one rank the files say it.
  std::vector<TensorSpec> tensors = {};
  std::vector<StatePieces> pieces = {};

  std::uint64_t total_bytes() const;  // of all files
  std::uint64_t shards() const {
    return files.size() / offload::kStateFields.size();
  }  // of each field
  bool in_parts() const { return world > 1; }
  DType dtype_of(std::size_t field) const {
    return stored_dtype(offload::kStateFields[field], moments);
  }

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// The checksum of one chunk: its bytes, and where they belong.
struct CheckpointChunk {
  std::uint64_t file = 0;  // its number
  std::uint64_t offset_bytes = 0;
};
std::uint64_t checkpoint_hash(std::span<const std::byte> bytes, const CheckpointChunk& place);

std::string to_text(const CheckpointManifest& manifest);
// kInvalidArgument: with this state, a checkpoint of these parameters has a manifest of more bytes
// than are read again.
Status check_manifest_room(const CheckpointState& state, std::span<const TensorSpec> parameters);
// kCorrupt, or kNewerVersion for a format of a later version, in one sentence without the file's
// name, for any bytes. What it accepts was written by to_text(): text that says the same in another
// way counts as damaged too.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text);

// Of a checkpoint's folder. kNotFound: there is none. kCorrupt and kNewerVersion name the file.
Result<CheckpointManifest> read_checkpoint_manifest(aio::IoQueue& queue, const std::string& folder);

}  // namespace sluice::engine
