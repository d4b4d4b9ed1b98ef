// FaultFileSystem: wraps another file system and makes its calls fail by a plan. Part of
// FaultBackend.
//
// A call that is to fail does nothing to the wrapped file system. Files are wrapped, so that their
// own calls can fail too; backend_slot belongs to the wrapped file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/fault_plan.h"
#include "aio/file_system.h"

namespace sluice::aio {

class FaultFile final : public File {
 public:
  FaultFile(std::unique_ptr<File> inner, FaultDecider& decider);

  Result<std::uint64_t> size_bytes() const override;
  Status allocate(std::uint64_t size_bytes) override;
  Status truncate(std::uint64_t size_bytes) override;
  int descriptor() const override { return inner_->descriptor(); }

  // The wrapped file, or `file` itself if it is not a FaultFile.
  static File* unwrap(File* file);

 private:
  std::unique_ptr<File> inner_;
  FaultDecider& decider_;
};

class FaultFileSystem final : public FileSystem {
 public:
  FaultFileSystem(FileSystem& inner, FaultDecider& decider) : inner_(inner), decider_(decider) {}

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

 private:
  FileSystem& inner_;
  FaultDecider& decider_;
};

// The errno value of a fault that is an error, else 0.
int errno_of(FaultKind kind);

}  // namespace sluice::aio
