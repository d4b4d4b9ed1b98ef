#include "aio/bounded_json.h"

#include <string>

namespace sluice {

bool is_nested_too_deep(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if ((c == '{' || c == '[') && ++depth > kMostJsonNesting) {
      return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

Status check_json_bounds(std::string_view json) {
  if (json.size() > kMostJsonBytes)
    return Error(ErrorCode::kCorrupt,
                 "it is JSON of more than " + std::to_string(kMostJsonBytes >> 20) + " MiB");
  if (is_nested_too_deep(json))
    return Error(ErrorCode::kCorrupt,
                 "it is JSON nested deeper than " + std::to_string(kMostJsonNesting) + " levels");
  return {};
}

Error not_json() { return Error(ErrorCode::kCorrupt, "it is not JSON (truncated or damaged)"); }

}  // namespace sluice
