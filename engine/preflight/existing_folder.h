// Where a folder that a run would make lies now.
#pragma once

#include <string>

#include "aio/file_system.h"

namespace sluice::engine {

// The path itself, or the nearest folder above it that is there: what it says of free space and of
// its file system is true of the path, too.
std::string existing_folder(aio::FileSystem& files, const std::string& path);

}  // namespace sluice::engine
