// The run's folder on each path, and the names of a store's files in it.
#pragma once

#include <string>
#include <string_view>

namespace sluice::swap {

inline constexpr std::string_view kFolderPrefix = "sluice-";

inline std::string folder_of(const std::string& path, const std::string& run) {
  return (path + "/").append(kFolderPrefix) + run;
}

inline std::string manifest_path(const std::string& folder) { return folder + "/store.json"; }
// Written by an earlier version: see check_is_scratch().
inline std::string closed_mark_path(const std::string& folder) { return folder + "/closed.json"; }
inline std::string frozen_mark_path(const std::string& folder) { return folder + "/frozen.json"; }
inline std::string data_path(const std::string& folder) { return folder + "/records"; }
inline std::string lock_path(const std::string& folder) { return folder + "/lock"; }

}  // namespace sluice::swap
