// The properties of a folder's storage that determine what can be guaranteed for files in it.
//
// Threads: any. Creates and changes nothing.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::aio {

struct StorageInfo {
  std::string file_system = "unknown";  // "ext4", "overlay on tmpfs"
  // Files are in memory: tmpfs, ramfs, a RAM disk, or an overlay whose upper layer is one of these.
  bool in_memory = false;
  // Overwritten data goes to new blocks, as on btrfs, so that space for it cannot be reserved.
  bool copies_on_write = false;
  // Every process that can reach the file sees a lock on it. False on network and FUSE file
  // systems, whose locks may be limited to this machine, and on unknown ones.
  bool locks_reach_all = false;
};

// For a path that exists; unknown properties keep the defaults above. An overlay in a container
// does not show its upper layer: memory_files.h determines it.
StorageInfo storage_info(const std::string& path);

}  // namespace sluice::aio
