#include "bench/option_values.h"

#include <charconv>

namespace sluice::bench {

Error wrong(const std::string& option, const std::string& value, const std::string& allowed) {
  return Error(ErrorCode::kInvalidArgument,
               option + " " + (value.empty() ? "\"\"" : value) + ": " + allowed);
}

Result<std::uint64_t> whole_number(const std::string& option, const std::string& text,
                                   std::uint64_t low, std::uint64_t high) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value < low || value > high)
    return wrong(option, text,
                 "give a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

Result<int> small_number(const std::string& option, const std::string& text, int low, int high) {
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t value,
                          whole_number(option, text, static_cast<std::uint64_t>(low),
                                       static_cast<std::uint64_t>(high)));
  return static_cast<int>(value);
}

}  // namespace sluice::bench
