// Which of a run's NVMe paths share a file system, and with it its free space.
//
// Threads: any. Nothing is made or changed.
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

// What an existing folder has in common with all others on its file system; empty where that cannot
// be determined.
using FileSystemOf = std::function<std::string(const std::string& folder)>;
// The device's number on this machine, "259:1".
std::string device_number_of(const std::string& folder);

struct PathsOfFileSystem {
  std::string folder;              // one that exists, to ask for its free space
  std::vector<std::size_t> paths;  // their places in the list, in order
};

// Every path belongs to exactly one of them; they are in the order of their first paths. A path
// whose file system cannot be determined has one by itself.
std::vector<PathsOfFileSystem> file_systems_of_paths(aio::FileSystem& files,
                                                     const std::vector<std::string>& paths,
                                                     const FileSystemOf& file_system_of);

// What is free on the file system of a folder, and how much of that others will take.
struct SharedRoom {
  std::optional<std::uint64_t> free_bytes;  // unset: it cannot be determined
  std::uint64_t other_bytes = 0;
};
SharedRoom room_beside(aio::FileSystem& files, const std::string& folder,
                       const std::vector<PathBytes>& others, const FileSystemOf& file_system_of);

}  // namespace sluice::engine
