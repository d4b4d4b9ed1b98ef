#include "engine/weights/quoting.h"

#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

constexpr std::size_t kLongestName = 100;

}  // namespace

std::string in_quotes(std::string_view name) {
  const bool is_long = name.size() > kLongestName;
  const nlohmann::json text = std::string(name.substr(0, kLongestName)) + (is_long ? "..." : "");
  return text.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace sluice::engine
