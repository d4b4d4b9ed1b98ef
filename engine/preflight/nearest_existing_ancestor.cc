#include "engine/preflight/nearest_existing_ancestor.h"

#include <filesystem>

namespace sluice::engine {

std::string nearest_existing_ancestor(aio::FileSystem& files, const std::string& path) {
  std::filesystem::path folder = path;
  for (;;) {
    const auto there = files.exists(folder.string());
    if (!there.ok() || *there) return folder.string();
    const std::filesystem::path above = folder.parent_path();
    if (above.empty() || above == folder) return above.empty() ? "." : above.string();
    folder = above;
  }
}

}  // namespace sluice::engine
