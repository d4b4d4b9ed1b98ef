// DirectFile: one file of known size as the target of requests.
//
// IO is direct (past the page cache) if the file system supports it, else buffered, which is logged
// once. Space is allocated at open, so that a full disk is an error then. The size need not be a
// multiple of a sector: while it is written the file has padding up to the next sector, and
// finish() truncates it.
//
// Threads: requests through IoQueue from any thread; finish() with no request in flight.
// Errors:  open() with kMustNotExist removes the file that it created before it reports an error;
//          with kIfMissing it leaves the file, which may have existed before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "aio/io_queue.h"
#include "aio/io_target.h"

namespace sluice::aio {

class DirectFile final : public IoTarget {
 public:
  struct Options {
    OpenOptions open;
    std::uint64_t size_bytes = 0;  // size to create; must be 0 to open an existing file
    bool preallocate = true;
    // For data that is written more than once. Copy-on-write file systems that support it overwrite
    // the file in place, so that it keeps its space (but loses the file system's checksums).
    bool overwritten = false;
  };

  // Opens or creates (options.open.create). The file stays attached to `queue`'s backend: both must
  // outlive the DirectFile.
  static Result<std::unique_ptr<DirectFile>> open(IoQueue& queue, const std::string& path,
                                                  const Options& options);
  ~DirectFile() override;

  const std::string& path() const override { return file_->path(); }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  Extent locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const override;
  std::span<File* const> files() const override { return {&raw_file_, 1}; }

  bool direct() const { return file_->direct(); }
  File& file() { return *file_; }

  // Truncates the padding beyond size_bytes() and makes everything durable.
  Status finish();

 private:
  DirectFile(IoQueue& queue, std::unique_ptr<File> file, std::uint64_t size_bytes, bool writable);

  IoQueue& queue_;
  std::unique_ptr<File> file_;
  File* raw_file_;
  std::uint64_t size_bytes_;
  bool writable_;
};

}  // namespace sluice::aio
