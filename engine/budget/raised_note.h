// "zero_optimization.<key> <given> is below <needed>: raised to <raised_to>".
#pragma once

#include <cstdint>
#include <string>

namespace sluice::engine {

inline std::string raised_note(const std::string& key, std::int64_t given,
                               const std::string& needed, std::uint64_t raised_to) {
  return "zero_optimization." + key + " " + std::to_string(given) + " is below " + needed +
         ": raised to " + std::to_string(raised_to);
}

}  // namespace sluice::engine
