// Tristate: a switch that the program may also set automatically.
#pragma once

#include <cstdint>

namespace sluice {

enum class Tristate : std::uint8_t { kAuto, kOn, kOff };

}  // namespace sluice
