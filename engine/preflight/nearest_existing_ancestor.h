// Where a folder that a run would make would lie.
#pragma once

#include <string>

#include "aio/file_system.h"

namespace sluice::engine {

// The path itself, or the nearest existing folder above it: its free space and its file system are
// the path's, too.
std::string nearest_existing_ancestor(aio::FileSystem& files, const std::string& path);

}  // namespace sluice::engine
