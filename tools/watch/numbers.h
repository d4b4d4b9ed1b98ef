// Numbers formatted for people; "-" for unknown values and values that are not finite.
//
// Threads: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice::watch {

std::string number_text(std::optional<double> value, int digits = 4);
std::string count_text(std::optional<double> value);       // "12.3k": thousands
std::string bytes_text(std::optional<double> value);       // "1.50 GiB"
std::string traffic_text(std::optional<double> value);     // "1.20 GB": as drives are sold
std::string duration_text(std::optional<double> seconds);  // "3 h 12 min"
std::string milliseconds_text(std::optional<double> value);
std::string share_text(std::optional<double> value);  // "91%"
std::string percent_text(std::optional<double> percent);
std::string clock_text(double unix_s);  // "14:03:22", local

}  // namespace sluice::watch
