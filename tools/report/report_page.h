// The page: one HTML file that asks nobody for anything, and may not: its Content-Security-Policy
// allows the one script that it was made with, and no connection.
//
// Threads: pure functions.
#pragma once

#include <string>

namespace sluice::report {

// `json`: of report_json(). `title` may be anything.
std::string report_page(const std::string& title, const std::string& json);

}  // namespace sluice::report
