// Simulated drives: how much space is free on them, and whether they can be written.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aio/file_system.h"

namespace sluice::engine {

class MadeUpFile final : public aio::File {
 public:
  explicit MadeUpFile(std::uint32_t alignment_bytes)
      : File("made up", alignment_bytes, alignment_bytes) {}
  Result<std::uint64_t> size_bytes() const override { return std::uint64_t{0}; }
  Status allocate(std::uint64_t) override { return {}; }
  Status truncate(std::uint64_t) override { return {}; }
};

struct Drive {
  std::uint64_t free_bytes = 0;
  bool direct = true;
  bool writable = true;
};

// Folders on drives; all other calls fail.
class MadeUpDrives final : public aio::FileSystem {
 public:
  std::map<std::string, Drive> folders;

  Result<std::unique_ptr<aio::File>> open(const std::string& path,
                                          const aio::OpenOptions& options) override {
    const auto drive = folders.find(path);
    if (drive == folders.end() || options.create != aio::OpenOptions::Create::kAnonymous ||
        !options.direct)
      return unexpected();
    if (!drive->second.writable)
      return Error(ErrorCode::kPermission, "create of " + path + " failed: permission denied");
    return std::unique_ptr<aio::File>(
        std::make_unique<MadeUpFile>(drive->second.direct ? 4096 : 1));
  }
  Result<bool> exists(const std::string& path) override { return folders.count(path) > 0; }
  Result<aio::PathKind> kind_of(const std::string& path) override {
    return folders.count(path) > 0 ? aio::PathKind::kFolder : aio::PathKind::kNothing;
  }
  Result<std::uint64_t> free_bytes(const std::string& path) override {
    const auto drive = folders.find(path);
    if (drive == folders.end()) return unexpected();
    return drive->second.free_bytes;
  }
  Status remove(const std::string&) override { return unexpected(); }
  Status rename(const std::string&, const std::string&) override { return unexpected(); }
  Status make_directories(const std::string&) override { return unexpected(); }
  Status sync_directory(const std::string&) override { return unexpected(); }
  Result<std::vector<std::string>> list(const std::string&) override { return unexpected(); }
  Result<std::unique_ptr<aio::FileLock>> lock(const std::string&) override { return unexpected(); }

 private:
  static Error unexpected() { return {ErrorCode::kInternal, "the check does not do this"}; }
};

}  // namespace sluice::engine
