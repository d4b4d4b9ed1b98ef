// CheckpointReader: the state in a checkpoint, by parameter and element.
//
// Every chunk is checked against the manifest before any byte of it is handed out: read() returns
// what was appended, bit for bit, or an error. Headers are read as such chunks too, so they say
// what was written. Reading in flat order is one pass over the files with chunks read ahead; any
// other order works, one chunk at a time.
//
// Memory:  chunks_ahead chunks per family, taken at open, and the headers.
// Threads: one at a time. `queue` must outlive it.
// Files:   one per family is open at a time.
// Errors:  name the file, and the bytes in it. kNotFound: no manifest, so the checkpoint does not
//          count, or no such parameter. kCorrupt: damaged, cut short, or another checkpoint's file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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

// Where state goes; equally long.
struct StateSpans {
  std::span<float> master;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
};

class CheckpointReader {
 public:
  struct Options {
    bool moments = true;   // false: their files are not looked at, and only read_master() works
    int chunks_ahead = 4;  // of each family; at least 1
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
  // In flat order.
  std::span<const TensorInfo> parameters() const { return parameters_; }
  const TensorInfo* find(std::string_view parameter) const;  // nullptr: there is none

  // Elements [first_element, first_element + to.master.size()) of a parameter.
  Status read(std::string_view parameter, std::uint64_t first_element, const StateSpans& to);
  // Only the weights; does not touch the moments' files.
  Status read_master(std::string_view parameter, std::uint64_t first_element,
                     std::span<float> values);

 private:
  struct Place {  // of one parameter, in each family: the same shard, maybe different offsets
    std::size_t shard = 0;
    std::array<std::uint64_t, kFamilies.size()> offset_bytes{};
  };

  CheckpointReader(aio::IoQueue& queue, std::string folder, const Options& options);
  Status prepare();
  Status add_shard(std::size_t shard);
  Result<std::vector<TensorInfo>> read_header(Family family, std::size_t shard,
                                              std::uint64_t& data_offset_bytes);
  Result<ChunkedReader*> file_of(Family family, std::size_t shard);
  Status read_family(Family family, std::string_view parameter, std::uint64_t first_element,
                     std::span<float> values);
  std::size_t families() const { return options_.moments ? kFamilies.size() : 1; }

  aio::IoQueue& queue_;
  const std::string folder_;
  const Options options_;
  CheckpointManifest manifest_;
  aio::PageMemory staging_;
  std::vector<TensorInfo> parameters_;
  std::vector<Place> places_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into both
  std::array<std::unique_ptr<ChunkedReader>, kFamilies.size()> files_;
  std::array<std::size_t, kFamilies.size()> open_shards_{};
};

}  // namespace sluice::engine
