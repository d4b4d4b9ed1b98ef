// What tests of faults need: a log that says nothing, and what is left in a folder.
#pragma once

#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>

#include "aio/log.h"

namespace sluice::engine {

class SilentLog {
 public:
  SilentLog() {
    log::set_sink([](log::Level, std::string_view) {});
  }
  ~SilentLog() { log::set_sink({}); }
  SilentLog(const SilentLog&) = delete;
  SilentLog& operator=(const SilentLog&) = delete;
};

inline std::ptrdiff_t entries(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

}  // namespace sluice::engine
