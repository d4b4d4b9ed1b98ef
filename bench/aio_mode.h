// What aio_bench does with the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::bench {

enum class Mode : std::uint8_t {
  kRead,      // sequential
  kWrite,     // sequential
  kMixed,     // a sequential stream of reads and one of writes, a coin decides which is next (fio's
              // rw=rw)
  kRandRead,  // any whole block
};

constexpr std::string_view to_string(Mode mode) {
  switch (mode) {
    case Mode::kRead:
      return "read";
    case Mode::kWrite:
      return "write";
    case Mode::kMixed:
      return "mixed";
    case Mode::kRandRead:
      return "randread";
  }
  return "";
}

constexpr std::optional<Mode> parse_mode(std::string_view text) {
  for (const Mode mode : {Mode::kRead, Mode::kWrite, Mode::kMixed, Mode::kRandRead})
    if (text == to_string(mode)) return mode;
  return std::nullopt;
}

constexpr bool writes(Mode mode) { return mode == Mode::kWrite || mode == Mode::kMixed; }

}  // namespace sluice::bench
