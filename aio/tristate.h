// Tristate: a switch that may be left to the program.
#pragma once

#include <cstdint>

namespace sluice {

enum class Tristate : std::uint8_t { kAuto, kOn, kOff };

}  // namespace sluice
