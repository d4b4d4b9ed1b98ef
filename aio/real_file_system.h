// RealFileSystem: the machine's files.
//
// Direct files use O_DIRECT and take their alignment from statx(STATX_DIOALIGN) if the kernel
// reports it, else 4096. Files in memory (memory_files.h), and files whose file system refuses
// O_DIRECT, are opened buffered, with one log line for each mount.
//
// Locks use flock(2). They belong to the open file, so threads of one process also exclude each
// other, and a child forked without exec holds its parent's locks until it also ends. On network
// file systems they may not reach other machines.
#pragma once

#include "aio/file_system.h"

namespace sluice::aio {

class RealFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, const OpenOptions& options) override;
  Status remove(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status make_directories(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<bool> exists(const std::string& path) override;
  Result<PathKind> kind_of(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;
  Result<std::uint64_t> free_bytes(const std::string& path) override;
};

}  // namespace sluice::aio
