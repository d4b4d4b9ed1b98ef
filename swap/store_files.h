// The names of a store's files in the run's folder on each path.
#pragma once

#include <string>

namespace sluice::swap {

inline std::string manifest_path(const std::string& folder) { return folder + "/store.json"; }
inline std::string closed_mark_path(const std::string& folder) { return folder + "/closed.json"; }
inline std::string data_path(const std::string& folder) { return folder + "/records"; }
inline std::string lock_path(const std::string& folder) { return folder + "/lock"; }

}  // namespace sluice::swap
