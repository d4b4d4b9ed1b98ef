// SimFileSystem: the names, sizes and space of a simulated drive. Part of SimDrive, which moves the
// bytes and decides when the power fails.
//
// Calls take no virtual time. Space is taken in blocks of 4096 bytes by allocate() and by the first
// write of a block. It is freed by truncate(), and when a file has neither a name nor a handle
// left. After a power loss every call fails with EIO until power is restored. Files opened before
// it fail permanently, like those of a dead process; locks end with it.
//
// Threads: the drive's thread. Files must be closed, and locks released, before the drive is
//          destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/power_loss.h"
#include "aio/sim_file_data.h"
#include "aio/sim_names.h"

namespace sluice::aio {

class SimFileSystem;

class SimFile final : public File {
 public:
  struct Options {
    std::uint32_t alignment_bytes = 1;
    bool writable = false;
  };
  SimFile(SimFileSystem& files, std::string path, std::shared_ptr<SimFileData> content,
          const Options& options);
  ~SimFile() override;

  Result<std::uint64_t> size_bytes() const override;
  Status allocate(std::uint64_t size_bytes) override;
  Status truncate(std::uint64_t size_bytes) override;

  // For the drive.
  SimFileData& content() const { return *content_; }
  bool belongs_to(const SimFileSystem& files) const { return &files_ == &files; }
  // 0, or why the drive refuses the transfer: -EIO (power), -EBADF, -EINVAL.
  int check_transfer(bool writes, std::uint64_t offset_bytes, const std::byte* data,
                     std::uint64_t length_bytes) const;

 private:
  Status resize(std::string_view operation, std::uint64_t size_bytes, bool keeps_longer);
  SimFileSystem& files_;
  const std::shared_ptr<SimFileData> content_;
  const bool writable_;
  const std::uint64_t power_epoch_;
};

class SimFileLock final : public FileLock {
 public:
  SimFileLock(SimFileSystem& files, const std::string& path, std::shared_ptr<SimFileData> content);
  ~SimFileLock() override;

  Result<bool> is_at(const std::string& path) const override;

 private:
  SimFileSystem& files_;
  const SimFile file_;  // also the lock's open handle
  const std::uint64_t power_epoch_;
};

class SimFileSystem final : public FileSystem {
 public:
  struct Options {
    std::uint64_t capacity_bytes = 0;
    std::uint32_t sector_bytes = 1;
    SimFileData::Options data;
    // Called for every call that changes something; true: the power has just been lost, so the
    // change is at risk and the caller gets EIO.
    std::function<bool()> on_change;
  };
  explicit SimFileSystem(Options options);

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

  // For the drive.
  std::uint64_t next_sequence() { return next_sequence_++; }
  std::uint64_t used_bytes() const { return used_bytes_; }
  // 0 also if a power loss has restored more removed files than there is room for.
  std::uint64_t unused_bytes() const {
    return used_bytes_ < options_.capacity_bytes ? options_.capacity_bytes - used_bytes_ : 0;
  }
  // Takes space for a write or an allocation; false if the drive is full.
  bool take_space(SimFileData& content, std::uint64_t begin_bytes, std::uint64_t end_bytes);
  void list_pending_metadata(std::vector<std::uint64_t>& into) const;
  std::uint64_t unsynced_bytes() const;
  void lose_power(const PowerLossModel& model);
  void restore_power() { powered_ = true; }
  bool powered() const { return powered_; }
  const SimNames& names() const { return names_; }

 private:
  friend class SimFile;
  friend class SimFileLock;

  Error failed(int error_number, std::string_view operation, const std::string& path) const;
  Status change_done(int error_number, std::string_view operation, const std::string& path);
  void release_if_dead(const SimFileData& content);
  Result<std::shared_ptr<SimFileData>> find_or_create(const std::string& path,
                                                      OpenOptions::Create create);

  const Options options_;
  SimNames names_;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t power_epoch_ = 0;  // counts power losses
  bool powered_ = true;
  // Holds files rather than names: a file that is removed or renamed keeps its lock.
  std::set<const SimFileData*> locked_;
};

}  // namespace sluice::aio
