// The source files of the page, compiled in (cmake/EmbedFiles.cmake). Constant data.
#pragma once

#include <span>
#include <string_view>

namespace sluice::report {

struct PagePart {
  std::string_view name;  // "page/main.js"
  std::string_view text;
};

std::span<const PagePart> page_parts();

}  // namespace sluice::report
