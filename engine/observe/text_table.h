// Columns as text: the first left-aligned, the others right-aligned, separated by two spaces.
#pragma once

#include <string>
#include <vector>

namespace sluice::engine {

using TextRow = std::vector<std::string>;

// One line per row, each with a newline. Rows may have different lengths.
std::string aligned(const std::vector<TextRow>& rows);

std::string decimals(double value, int digits);
// 0.9 -> "0.9 s", 75 -> "1:15", 3700 -> "1:01:40"
std::string duration(double seconds);
// 950 -> "950", 12340 -> "12.3k", 1.5e6 -> "1.50M"
std::string compact(double value);

}  // namespace sluice::engine
