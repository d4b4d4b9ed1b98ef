#include "aio/memory_files.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "aio/drive_names.h"
#include "aio/mount_table.h"
#include "aio/real_file_system.h"
#include "aio/storage_info.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

// Far more than other programs allocate at the same moment, and than the lag of per-core counters;
// less if there is not enough room.
constexpr std::uint64_t kMostTakenBytes = 64 * kMiB;
constexpr std::uint64_t kLeastTakenBytes = 8 * kMiB;

std::uint64_t shared_memory_bytes() {
  std::istringstream lines(read_text("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("Shmem:"))
      return std::stoull("0" + line.substr(line.find_first_of("0123456789"))) * kKiB;
  return 0;
}

// Every file system on a disk can report where a file begins.
bool has_blocks_on_a_disk(int descriptor) {
  struct fiemap map {};
  map.fm_length = 1;
  return ::ioctl(descriptor, FS_IOC_FIEMAP, &map) == 0;
}

// Empty: it cannot be determined in this folder.
std::optional<bool> takes_memory(const std::string& folder) {
  RealFileSystem files;
  OpenOptions options;
  options.access = OpenOptions::Access::kReadWrite;
  options.create = OpenOptions::Create::kAnonymous;
  options.direct = false;
  const auto file = files.open(folder, options);
  if (!file.ok()) return std::nullopt;
  if (has_blocks_on_a_disk((*file)->descriptor())) return false;
  for (std::uint64_t bytes = kMostTakenBytes; bytes >= kLeastTakenBytes; bytes /= 2) {
    const std::uint64_t before = shared_memory_bytes();
    if (!(*file)->allocate(bytes).ok()) continue;
    return shared_memory_bytes() >= before + bytes * 3 / 4;
  }
  return std::nullopt;
}

// A property of the machine, determined once for each file system.
bool overlay_is_memory(dev_t device, const std::string& folder) {
  static std::mutex mutex;
  static std::map<dev_t, bool> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  const auto answer = takes_memory(folder);
  if (answer) known[device] = *answer;
  return answer.value_or(false);
}

bool is_overlay(const struct statfs& info) { return info.f_type == OVERLAYFS_SUPER_MAGIC; }

}  // namespace

bool folder_is_memory(const std::string& folder) {
  if (storage_info(folder).in_memory) return true;
  struct statfs info {};
  struct stat there {};
  return ::statfs(folder.c_str(), &info) == 0 && is_overlay(info) &&
         ::stat(folder.c_str(), &there) == 0 && overlay_is_memory(there.st_dev, folder);
}

bool file_is_memory(int descriptor) {
  struct stat file {};
  // A device file's data is not on the file system of its name.
  if (::fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode)) return false;
  // "/folder/file", "/folder/#12 (deleted)": independent of links and of the working directory.
  const std::filesystem::path path = link_target("/proc/self/fd/" + std::to_string(descriptor));
  const std::string folder = path.parent_path().string();
  if (storage_info(file.st_nlink == 0 ? folder : path.string()).in_memory) return true;
  struct statfs info {};
  return ::fstatfs(descriptor, &info) == 0 && is_overlay(info) &&
         !has_blocks_on_a_disk(descriptor) && folder_is_memory(folder);
}

}  // namespace sluice::aio
