#include "engine/weights/json_events.h"

#include <utility>

namespace sluice::engine {
Status JsonEvents::read(std::string_view text) {
  what_.clear();
  if (nlohmann::json::sax_parse(text, this)) return {};
  return Error(ErrorCode::kCorrupt, what_);
}

bool JsonEvents::parse_error(std::size_t position, const std::string& /*token*/,
                             const nlohmann::json::exception& /*error*/) {
  return fail("it is not JSON after byte " + std::to_string(position) + " on");
}

bool JsonEvents::fail(std::string what) {
  what_ = std::move(what);
  return false;
}

}  // namespace sluice::engine
