#include "engine/weights/json_events.h"

#include <utility>

namespace sluice::engine {
namespace {

constexpr std::size_t kLongestName = 100;

}  // namespace

Status JsonEvents::read(std::string_view text) {
  what_.clear();
  if (nlohmann::json::sax_parse(text, this)) return {};
  return Error(ErrorCode::kCorrupt, what_);
}

bool JsonEvents::parse_error(std::size_t position, const std::string& /*token*/,
                             const nlohmann::json::exception& /*error*/) {
  return fail("it is no JSON from byte " + std::to_string(position) + " on");
}

bool JsonEvents::fail(std::string what) {
  what_ = std::move(what);
  return false;
}

std::string in_quotes(std::string_view name) {
  const bool is_long = name.size() > kLongestName;
  const nlohmann::json text = std::string(name.substr(0, kLongestName)) + (is_long ? "..." : "");
  return text.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace sluice::engine
