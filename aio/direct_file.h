// DirectFile: one file of known size as the target of requests.
//
// Direct (past the page cache) where the file system can, buffered where it cannot, which is logged
// once. Space is taken at open, so that a full disk is an error then. A size that is no multiple of
// a sector is fine: while it is written the file carries padding up to the next sector, and
// finish() cuts it to size.
//
// Threads: requests through IoQueue from any thread; finish() with no request in flight.
// Errors:  open() with kMustNotExist removes the file it made before it reports an error; with
//          kIfMissing it leaves the file, which may not be ours.
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
    std::uint64_t size_bytes = 0;  // to create; must be 0 to open an existing file
    bool preallocate = true;
    // For what is written more than once: on copy-on-write file systems that can do it the file is
    // overwritten in place, so that its space is its own (and it does without their checksums).
    bool overwritten = false;
  };

  // Opens or creates (options.open.create). `queue`'s backend keeps the file attached: both must
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

  // Cuts off the padding beyond size_bytes() and makes everything durable.
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
