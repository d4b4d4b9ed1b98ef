// The page: one HTML file that makes no requests. Its Content-Security-Policy forbids connections,
// and allows only the script that it was made with.
//
// A live page is handed out by a server (tools/watch) and requests updates from that server only.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice::report {

// `json`: from report_json(). `title`: any text.
std::string report_page(const std::string& title, const std::string& json);

struct LivePage {
  std::string html;
  std::string policy;  // the page's Content-Security-Policy, for the reply's header
};
LivePage live_page(const std::string& title, const std::string& json);

// The source files of the page, compiled in (cmake/EmbedFiles.cmake). Constant data.
struct PagePart {
  std::string_view name;  // "page/main.js"
  std::string_view text;
};

std::span<const PagePart> page_parts();

}  // namespace sluice::report
