// The page: one HTML file that asks nobody for anything, and may not: its Content-Security-Policy
// allows the one script that it was made with, and no connection.
//
// A live page, which a server hands out (tools/watch), asks that server, and nobody else, for what
// is new.
//
// Threads: pure functions.
#pragma once

#include <string>

namespace sluice::report {

// `json`: of report_json(). `title` may be anything.
std::string report_page(const std::string& title, const std::string& json);

struct LivePage {
  std::string html;
  std::string policy;  // the Content-Security-Policy that it has, for the reply's header
};
LivePage live_page(const std::string& title, const std::string& json);

}  // namespace sluice::report
