// SpillFiles: parameter values in unnamed files, in the folders of a run's NVMe tiers. If the
// process is killed, nothing remains. Each value is written and read as a whole, or read part by
// part in ascending order with read-ahead. Every byte is checked before it is returned.
//
// Space:   allocated as values arrive, in files of many values. A file is freed with its last
//          value; a value owns its space until give_back().
// Memory:  2 * kChunkBytes, allocated in create().
// Threads: one at a time.
// Errors:  kNoSpace says how much is needed and where. A failed call leaves the value on the drive
//          as it was; a failed write() leaves it without content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io_backend.h"
#include "aio/io_queue.h"
#include "aio/io_watchdog.h"
#include "aio/page_memory.h"
#include "aio/result.h"
#include "aio/striped_file.h"
#include "engine/config/config.h"

namespace sluice::engine {

class SpillFiles {
 public:
  static constexpr std::uint64_t kChunkBytes = 4 << 20;  // unit of checking
  static constexpr std::uint64_t kAlignment = 4096;      // of memory for reads

  // A value's place in a file; without content before write().
  class Value {
   public:
    std::uint64_t bytes() const { return bytes_; }

   private:
    friend class SpillFiles;
    struct File {
      std::unique_ptr<aio::StripedFile> file;
      std::uint64_t used_bytes = 0;
      int values = 0;
    };
    std::list<File>::iterator file_;
    std::uint64_t offset_bytes_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint64_t number_ = 0;
    std::uint64_t generation_ = 0;
    std::vector<std::uint64_t> hashes_;  // of its chunks
  };

  // `folders`: those of nvme_folders(), at least one; they exist.
  static Result<std::unique_ptr<SpillFiles>> create(const config::Config& config,
                                                    std::vector<std::string> folders);
  ~SpillFiles();
  SpillFiles(const SpillFiles&) = delete;
  SpillFiles& operator=(const SpillFiles&) = delete;

  Result<std::unique_ptr<Value>> take(std::uint64_t bytes);
  void give_back(std::unique_ptr<Value> value);

  // Writes the whole value; `content` may be anywhere in memory.
  Status write(Value& value, std::span<const std::byte> content);
  // Reads the whole value into memory that is aligned to kAlignment and has room for a multiple of
  // it.
  Status read(const Value& value, std::byte* to);
  Status read_part(const Value& value, std::uint64_t offset_bytes, std::span<std::byte> to);

  std::uint64_t written_bytes() const { return written_bytes_; }
  std::uint64_t read_bytes() const { return read_bytes_; }

 private:
  // Half of the staging memory: a chunk being written, or one that was read.
  struct Half {
    aio::IoRequest request;
    std::span<std::byte> memory;
    bool in_flight = false;
    std::uint64_t number = 0;  // of the chunk's value; 0: none
    std::uint64_t chunk = 0;
    bool is_checked = false;
  };

  SpillFiles() = default;
  Status add_file(std::uint64_t bytes);
  Status finish(Half& half);
  Status finish_all();
  void forget(const Value& value);
  std::uint64_t hash_of(const Value& value, std::uint64_t chunk,
                        std::span<const std::byte> bytes) const;
  Status check(const Value& value, std::uint64_t chunk, std::span<const std::byte> bytes) const;
  void start_read(const Value& value, std::uint64_t chunk, Half& half);
  Result<Half*> chunk_of(const Value& value, std::uint64_t chunk);

  std::vector<std::string> folders_;
  std::vector<int> weights_;
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::IoWatchdog> watchdog_;  // null: disabled
  std::list<Value::File> files_;
  std::uint64_t file_bytes_ = 0;  // of all files
  std::uint64_t last_number_ = 0;
  std::uint64_t written_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  aio::PageMemory staging_;
  std::array<Half, 2> halves_;
};

}  // namespace sluice::engine
