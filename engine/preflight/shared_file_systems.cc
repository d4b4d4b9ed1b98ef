#include "engine/preflight/shared_file_systems.h"

#include <map>
#include <utility>

#include "aio/machine_info.h"
#include "engine/preflight/nearest_existing_ancestor.h"

namespace sluice::engine {

std::string device_number_of(const std::string& folder) {
  return aio::mount_info(folder).device_number;
}

std::vector<PathsOfFileSystem> file_systems_of_paths(aio::FileSystem& files,
                                                     const std::vector<std::string>& paths,
                                                     const FileSystemOf& file_system_of) {
  std::vector<PathsOfFileSystem> systems;
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::string folder = nearest_existing_ancestor(files, paths[i]);
    const std::string name = file_system_of(folder);
    const auto [at, is_new] = known.try_emplace(name, systems.size());
    if (is_new || name.empty())
      systems.push_back({.folder = std::move(folder), .paths = {i}});
    else
      systems[at->second].paths.push_back(i);
  }
  return systems;
}

SharedRoom room_beside(aio::FileSystem& files, const std::string& folder,
                       const std::vector<PathBytes>& others, const FileSystemOf& file_system_of) {
  std::vector<std::string> paths = {folder};
  for (const PathBytes& it : others) paths.push_back(it.path);
  const PathsOfFileSystem here = file_systems_of_paths(files, paths, file_system_of).front();
  SharedRoom room;
  const auto free = files.free_bytes(here.folder);
  if (free.ok()) room.free_bytes = *free;
  for (const std::size_t i : here.paths)
    if (i > 0) room.other_bytes += others[i - 1].bytes;
  return room;
}

}  // namespace sluice::engine
