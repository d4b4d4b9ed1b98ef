// Where a user's measured speeds are kept: $XDG_CACHE_HOME/sluice/speeds.json, else below ~/.cache.
#pragma once

#include <cstdlib>
#include <string>

namespace sluice::tools {

// Empty where the environment names no such folder: then nothing is kept.
inline std::string speeds_path() {
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  // A path that is not absolute is disregarded, as the XDG specification requires.
  const std::string cache = value("XDG_CACHE_HOME");
  if (!cache.empty() && cache.front() == '/') return cache + "/sluice/speeds.json";
  const std::string home = value("HOME");
  return home.empty() ? "" : home + "/.cache/sluice/speeds.json";
}

}  // namespace sluice::tools
