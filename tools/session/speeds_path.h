// The file of a user's measured speeds: $XDG_CACHE_HOME/sluice/speeds.json, else below ~/.cache.
#pragma once

#include <cstdlib>
#include <string>

namespace sluice::tools {

// Empty if the environment names no such folder: then nothing is kept.
inline std::string speeds_path() {
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  // The XDG specification requires that paths that are not absolute are ignored.
  const std::string cache = value("XDG_CACHE_HOME");
  if (!cache.empty() && cache.front() == '/') return cache + "/sluice/speeds.json";
  const std::string home = value("HOME");
  return home.empty() ? "" : home + "/.cache/sluice/speeds.json";
}

}  // namespace sluice::tools
