#include "tools/watch/run_lock.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>

namespace sluice::watch {
namespace {

// File systems whose locks may be held on another machine or by a server process.
bool is_shared(const std::string& path) {
  constexpr std::uint32_t kFuse = 0x65735546, kLustre = 0x0BD00BD0, kCifs = 0xFF534D42,
                          kSmb2 = 0xFE534D42, kGpfs = 0x47504653, kBeeGfs = 0x19830326;
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return true;
  switch (static_cast<std::uint32_t>(info.f_type)) {
    case NFS_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case kFuse:
    case kLustre:
    case kCifs:
    case kSmb2:
    case kGpfs:
    case kBeeGfs:
      return true;
    default:
      return false;
  }
}

}  // namespace

// "1: FLOCK  ADVISORY  WRITE 708 fe:00:5586959 0 EOF"
bool lists_lock(std::string_view locks, std::uint64_t inode) {
  while (!locks.empty()) {
    const std::string_view line = locks.substr(0, locks.find('\n'));
    locks.remove_prefix(std::min(locks.size(), line.size() + 1));
    if (line.find(" FLOCK ") == line.npos) continue;
    const std::size_t colon = line.rfind(':');
    std::uint64_t number = 0;
    const char* const end = line.data() + line.size();
    if (colon != line.npos &&
        std::from_chars(line.data() + colon + 1, end, number).ec == std::errc{} && number == inode)
      return true;
  }
  return false;
}

RunLock run_lock(const std::string& folder) {
  const std::string path = folder + "/lock";
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno == ENOENT ? RunLock::kFree : RunLock::kUnknown;
  std::ifstream file("/proc/locks");
  const std::string locks{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) return RunLock::kUnknown;
  if (lists_lock(locks, info.st_ino)) return RunLock::kHeld;
  return is_shared(path) ? RunLock::kUnknown : RunLock::kFree;
}

}  // namespace sluice::watch
