// FileSystem and File: names, sizes and space. IoBackend moves the bytes.
//
// There are two implementations: the machine's own (real_file_system.h) and the simulated drive's
// (sim_drive.h); the fault-injecting backend wraps either. Calls block, and are meant for set-up
// and shutdown, not for the step.
//
// Threads: any, for different files; one thread at a time for one File.
// Errors:  every call names operation, path and errno.
// Durability: as in POSIX. A file's bytes survive a power loss once an IoKind::kSync of it has
//             completed, its name once sync_directory() of its folder has returned.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::aio {

struct OpenOptions {
  enum class Access : std::uint8_t { kRead, kReadWrite };
  enum class Create : std::uint8_t {
    kMustExist,
    kMustNotExist,  // kAlreadyExists rather than touch an existing file
    kIfMissing,
    kAnonymous,  // `path` is a folder: an unnamed file, gone with its last handle or process
  };
  Access access = Access::kRead;
  Create create = Create::kMustExist;
  bool direct = true;  // past the page cache if possible; else buffered, logged once
};

// An open file; closed by its destructor.
class File {
 public:
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }

  // Direct files: offsets and lengths of operations must be multiples of offset_alignment_bytes(),
  // buffers of memory_alignment_bytes(). Buffered files: both are 1.
  bool direct() const { return offset_alignment_bytes_ > 1; }
  std::uint32_t offset_alignment_bytes() const { return offset_alignment_bytes_; }
  std::uint32_t memory_alignment_bytes() const { return memory_alignment_bytes_; }

  virtual Result<std::uint64_t> size_bytes() const = 0;
  // Allocates disk space for [0, size_bytes) and makes the file at least that long. So a full disk
  // is an error now and not in the middle of a step. kUnsupported: the file system cannot.
  virtual Status allocate(std::uint64_t size_bytes) = 0;
  virtual Status truncate(std::uint64_t size_bytes) = 0;

  // The file descriptor, for backends that call the kernel; -1: none.
  virtual int descriptor() const { return -1; }

  // The file's slot in the backend to which it is attached (-1: not attached). Only that backend
  // writes it, while no operation on the file is in flight.
  int backend_slot = -1;
  const void* attached_to = nullptr;  // the owner of that slot

 protected:
  File(std::string path, std::uint32_t offset_alignment_bytes, std::uint32_t memory_alignment_bytes)
      : path_(std::move(path)),
        offset_alignment_bytes_(offset_alignment_bytes),
        memory_alignment_bytes_(memory_alignment_bytes) {}

 private:
  std::string path_;
  std::uint32_t offset_alignment_bytes_;
  std::uint32_t memory_alignment_bytes_;
};

// An exclusive lock on a file. The destructor releases it, and so does the end of the process,
// however it ends. The file stays.
class FileLock {
 public:
  virtual ~FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Whether `path` leads to the locked file: false if it was moved, or its drive unmounted.
  virtual Result<bool> is_at(const std::string& path) const = 0;

 protected:
  FileLock() = default;
};

enum class PathKind : std::uint8_t { kNothing, kFile, kFolder, kLink, kOther };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::unique_ptr<File>> open(const std::string& path,
                                             const OpenOptions& options) = 0;
  virtual Status remove(const std::string& path) = 0;  // a file or an empty folder
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // atomic, replaces
  virtual Status make_directories(const std::string& path) = 0;  // and parents; may exist already
  virtual Status sync_directory(const std::string& path) = 0;
  virtual Result<bool> exists(const std::string& path) = 0;
  // The kind of the entry itself: a link is kLink, wherever it leads.
  virtual Result<PathKind> kind_of(const std::string& path) = 0;
  // The names in a folder, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // Locks the file at `path`, creating it if it is missing; never waits. kBusy while another lock()
  // of it is held, in this process or another. A lock on a file that has since been removed does
  // not count as one on the file now at `path`. kUnsupported if files cannot be locked.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
  // The bytes that an unprivileged user could still write below `path`.
  virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;
};

}  // namespace sluice::aio
