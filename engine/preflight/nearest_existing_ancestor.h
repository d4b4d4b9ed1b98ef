// The place of a folder that a run would create.
#pragma once

#include <string>

#include "aio/file_system.h"

namespace sluice::engine {

// The path itself, or its nearest existing ancestor, which has the path's file system and free
// space.
std::string nearest_existing_ancestor(aio::FileSystem& files, const std::string& path);

}  // namespace sluice::engine
