#include "engine/comm/launcher_text.h"

#include <charconv>
#include <utility>

#include "aio/text.h"

namespace sluice::engine {

Error wrong(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return "'" + shown(text, kShown) + "'";
}

std::string shown(std::string_view text, std::size_t most) {
  return printable(text.substr(0, most), "") + (text.size() > most ? "..." : "");
}

std::optional<int> whole_number(std::string_view text, int most) {
  int value = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

}  // namespace sluice::engine
