// The NVMe paths of a run that share a file system, and so its free space.
//
// Threads: any. Nothing is created or changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "engine/budget/stripe_plan.h"

namespace sluice::engine {

// An identifier that is equal for all folders of one file system; empty if it is unknown.
using FileSystemOf = std::function<std::string(const std::string& folder)>;
// The device number on this machine, "259:1".
std::string device_number_of(const std::string& folder);

struct PathsOfFileSystem {
  std::string folder;              // an existing one, to query the free space
  std::vector<std::size_t> paths;  // their indices in the list, in order
};

// Each path belongs to exactly one file system; they are ordered by their first paths. A path whose
// file system is unknown gets its own entry.
std::vector<PathsOfFileSystem> file_systems_of_paths(aio::FileSystem& files,
                                                     const std::vector<std::string>& paths,
                                                     const FileSystemOf& file_system_of);

// The free space on the file system of a folder, and the space that others will use.
struct SharedRoom {
  std::optional<std::uint64_t> free_bytes;  // unset: unknown
  std::uint64_t other_bytes = 0;
};
SharedRoom room_beside(aio::FileSystem& files, const std::string& folder,
                       const std::vector<PathBytes>& others, const FileSystemOf& file_system_of);

}  // namespace sluice::engine
