#include "aio/storage_info.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdint>
#include <utility>

#include "aio/machine_info.h"
#include "aio/mount_table.h"

namespace sluice::aio {
namespace {

// File systems that linux/magic.h lacks.
constexpr std::uint64_t kZfsMagic = 0x2fc12fc1;
constexpr std::uint64_t kBcachefsMagic = 0xca451a4e;
constexpr std::uint64_t kJfsMagic = 0x3153464a;

StorageInfo storage_of_type(std::uint64_t type, const std::string& name) {
  StorageInfo info{.file_system = name};
  switch (type) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
      info.in_memory = info.locks_reach_all = true;
      break;
    case BTRFS_SUPER_MAGIC:
    case NILFS_SUPER_MAGIC:
    case kZfsMagic:
    case kBcachefsMagic:
      info.copies_on_write = info.locks_reach_all = true;
      break;
    // A disk belongs to one machine at a time.
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case REISERFS_SUPER_MAGIC:
    case MSDOS_SUPER_MAGIC:
    case EXFAT_SUPER_MAGIC:
    case kJfsMagic:
      info.locks_reach_all = true;
      break;
    default:
      break;
  }
  return info;
}

Mount mount_of(const std::string& path) {
  const MountInfo at = mount_info(path);
  Mount last;
  for (Mount& mount : parse_mount_table(read_text("/proc/self/mountinfo")))
    if (mount.mount_point == at.mount_point) last = std::move(mount);
  return last;
}

bool is_memory_device(const std::string& device) {
  return device.starts_with("/dev/ram") || device.starts_with("/dev/zram");
}

// The upper layer holds written data. Its name is valid in the namespace that mounted the overlay;
// if it leads to another file system here, sizes differ.
StorageInfo storage_of_overlay(const std::string& path, const struct statfs& overlay) {
  StorageInfo unknown{.file_system = "overlay"};
  unknown.locks_reach_all = true;  // no two overlays share an upper layer
  const auto upper = super_option(mount_of(path), "upperdir");
  struct statfs below {};
  if (!upper || ::statfs(upper->c_str(), &below) != 0 || below.f_blocks != overlay.f_blocks ||
      below.f_files != overlay.f_files || below.f_type == overlay.f_type)
    return unknown;
  StorageInfo info = storage_info(*upper);
  info.file_system = "overlay on " + info.file_system;
  info.locks_reach_all = true;
  return info;
}

}  // namespace

StorageInfo storage_info(const std::string& path) {
  struct statfs there {};
  if (::statfs(path.c_str(), &there) != 0) return {};
  const auto type = static_cast<std::uint64_t>(there.f_type) & 0xffffffffU;
  if (type == OVERLAYFS_SUPER_MAGIC) return storage_of_overlay(path, there);
  const Mount mount = mount_of(path);
  StorageInfo info = storage_of_type(type, mount.type.empty() ? "unknown" : mount.type);
  if (is_memory_device(mount.source)) info.in_memory = true;
  return info;
}

}  // namespace sluice::aio
