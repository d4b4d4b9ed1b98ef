#include "engine/comm/launcher_text.h"

#include <charconv>
#include <cstddef>
#include <utility>

namespace sluice::engine {

Error wrong(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

std::optional<int> whole_number(std::string_view text, int most) {
  int value = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

}  // namespace sluice::engine
