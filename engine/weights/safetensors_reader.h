// SafetensorsReader: reads the tensors of a safetensors file, or of a sharded set, as fp32, range
// by range.
//
// Memory:  the headers, and options.staging_bytes, allocated once; never a whole tensor. Reading
//          continues while earlier data is converted.
// Threads: one at a time. `queue` must outlive the reader.
// Files:   one is open at a time. A file that changed after open() is an error.
// Errors:  name the file, and the tensor if any. kCorrupt: the bytes are not safetensors.
//          kNotFound: no such file or tensor.
//          kNotFound: no such file, or no such tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aio/direct_file.h"
#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

class SafetensorsReader final : public WeightSource {
 public:
  struct Options {
    std::uint64_t staging_bytes = 16 << 20;  // at least 64 KiB
  };

  // `path`: a .safetensors file, an index (.json) of several, or a folder that contains either
  // under Hugging Face's name. Every header is read and checked here.
  static Result<std::unique_ptr<SafetensorsReader>> open(aio::IoQueue& queue,
                                                         const std::string& path,
                                                         const Options& options);
  static Result<std::unique_ptr<SafetensorsReader>> open(aio::IoQueue& queue,
                                                         const std::string& path) {
    return open(queue, path, Options());
  }

  // In the order of the files and of their bytes: reading in this order is one pass.
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  const Metadata& metadata() const { return metadata_; }  // of the first file

  Status read(std::string_view name, std::uint64_t first_element, std::span<float> values) override;
  std::string place_of(std::string_view name) const override;

 private:
  struct Shard {
    std::string path;
    std::uint64_t data_offset_bytes = 0;
    std::uint64_t file_bytes = 0;
  };
  // One half of the staging memory, and the read into it.
  struct Piece {
    aio::IoRequest request;
    std::span<std::byte> memory;
    std::uint64_t head_bytes = 0;  // read only because direct reads begin at a page
    std::span<float> values;
  };

  SafetensorsReader(aio::IoQueue& queue, aio::PageMemory staging);
  Status add_file(const std::string& path, const std::string& name,
                  const std::map<std::string, std::string>* index);
  Status add_set(const std::string& index_path);
  Status open_shard(std::size_t shard);
  void start(Piece& piece, std::uint64_t offset_bytes, std::uint64_t element_size_bytes,
             std::span<float> values);
  Status read_range(const TensorInfo& tensor, std::uint64_t offset_bytes, std::span<float> values);

  aio::IoQueue& queue_;
  aio::PageMemory staging_;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> shard_of_;                          // of each tensor
  std::unordered_map<std::string_view, std::size_t> by_name_;  // into tensors_
  Metadata metadata_;
  std::unique_ptr<aio::DirectFile> file_;
  std::size_t open_shard_ = 0;
};

}  // namespace sluice::engine
