#include "aio/direct_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "aio/copy_on_write.h"
#include "aio/log.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

bool creates(const OpenOptions& open) { return open.create != OpenOptions::Create::kMustExist; }

Error no_room(const std::string& path, std::uint64_t size_bytes,
              const Result<std::uint64_t>& free_before) {
  std::string text = "no room for " + format_bytes(size_bytes) + " at " + path;
  if (free_before.ok()) text += ": " + format_bytes(*free_before) + " are free";
  return Error(ErrorCode::kNoSpace, text + ". Free some space there, or choose another path");
}

// Allocates space for the file, padding included, now rather than in the middle of a step. Space
// that a failed attempt allocated is freed.
Status reserve(FileSystem& files, File& file, std::uint64_t size_bytes, bool preallocate) {
  const std::uint64_t padded = align_up(size_bytes, file.offset_alignment_bytes());
  if (preallocate) {
    const auto slash = file.path().rfind('/');
    const auto free_before =
        files.free_bytes(slash == std::string::npos ? "." : file.path().substr(0, slash + 1));
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t size_before, file.size_bytes());
    Status allocated = file.allocate(padded);
    if (allocated.ok()) return {};
    static_cast<void>(file.truncate(size_before));
    if (allocated.error().error_number() == ENOSPC) {
      return no_room(file.path(), size_bytes, free_before);
    }
    if (allocated.error().code() != ErrorCode::kUnsupported) return allocated;
    log::info_once("no-fallocate", file.path() +
                                       " is on a file system that cannot reserve space: a full "
                                       "disk will be noticed only when it is written");
  }
  return file.truncate(padded);
}

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::open(IoQueue& queue, const std::string& path,
                                                     const Options& options) {
  FileSystem& files = queue.backend().files();
  const bool writable = options.open.access == OpenOptions::Access::kReadWrite;
  if (creates(options.open) && (options.size_bytes == 0 || !writable)) {
    return Error(ErrorCode::kInvalidArgument,
                 "a file that is created must be writable and have a size: " + path);
  }
  if (!creates(options.open) && options.size_bytes != 0) {
    return Error(ErrorCode::kInvalidArgument, "an existing file keeps its size: " + path);
  }
  SLUICE_ASSIGN_OR_RETURN(auto raw, files.open(path, options.open));
  const bool made_here = options.open.create == OpenOptions::Create::kMustNotExist;
  std::uint64_t size_bytes = options.size_bytes;
  if (!creates(options.open)) {
    SLUICE_ASSIGN_OR_RETURN(size_bytes, raw->size_bytes());
  }
  std::unique_ptr<DirectFile> file(new DirectFile(queue, std::move(raw), size_bytes, writable));
  if (!creates(options.open)) return file;

  // This is possible only while the file is empty.
  if (options.overwritten && file->file_->descriptor() >= 0)
    static_cast<void>(set_overwritten_in_place(file->file_->descriptor()));
  Status ready = reserve(files, *file->file_, size_bytes, options.preallocate);
  if (!ready.ok()) {
    file.reset();
    if (made_here) static_cast<void>(files.remove(path));
    return std::move(ready).error();
  }
  return file;
}

DirectFile::DirectFile(IoQueue& queue, std::unique_ptr<File> file, std::uint64_t size_bytes,
                       bool writable)
    : queue_(queue),
      file_(std::move(file)),
      raw_file_(file_.get()),
      size_bytes_(size_bytes),
      writable_(writable) {
  queue_.backend().attach(*file_);
}

DirectFile::~DirectFile() { queue_.backend().detach(*file_); }

Extent DirectFile::locate(std::uint64_t offset_bytes, std::uint64_t max_length_bytes) const {
  return {.file = raw_file_,
          .offset_bytes = offset_bytes,
          .length_bytes = max_length_bytes,
          .file_end_bytes = size_bytes_};
}

Status DirectFile::finish() {
  if (!writable_) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t physical_bytes, file_->size_bytes());
  if (physical_bytes != size_bytes_) SLUICE_RETURN_IF_ERROR(file_->truncate(size_bytes_));
  return queue_.sync(*this);
}

}  // namespace sluice::aio
