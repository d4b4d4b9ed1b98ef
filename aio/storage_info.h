// What the storage under a folder is, insofar as it determines what can be promised about files
// there.
//
// Threads: any. Nothing is made or changed.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::aio {

struct StorageInfo {
  std::string file_system = "unknown";  // "ext4", "overlay on tmpfs"
  // Its files are memory: tmpfs, ramfs, a RAM disk, an overlay whose upper layer is one of them.
  bool in_memory = false;
  // Overwritten data goes to new blocks, as on btrfs: space for it cannot be reserved.
  bool copies_on_write = false;
  // A lock is seen by everyone who can reach the file. False on network and FUSE file systems,
  // whose locks may end at this machine, and on those that are not known.
  bool locks_reach_all = false;
};

// Of a path that exists; what is not known is as above. An overlay in a container does not show its
// upper layer: memory_files.h finds out.
StorageInfo storage_info(const std::string& path);

}  // namespace sluice::aio
