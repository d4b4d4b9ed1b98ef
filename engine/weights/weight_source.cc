#include "engine/weights/weight_source.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice::engine {

Status WeightSource::read_finite(std::string_view name, std::uint64_t first_element,
                                 std::span<float> values) {
  SLUICE_RETURN_IF_ERROR(read(name, first_element, values));
  // First check all values without branches, at memory speed: non-finite values are very rare.
  constexpr std::uint32_t kExponent = 0x7F800000;
  std::uint32_t any = 0;
  for (const float value : values)
    any |=
        static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent);
  if (any == 0) return {};
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  const auto at = first_element + static_cast<std::uint64_t>(bad - values.begin());
  return Error(ErrorCode::kCorrupt, place_of(name) + ": element " + std::to_string(at) + " of " +
                                        std::string(name) +
                                        " is not finite in fp32: the training that wrote it "
                                        "diverged, or the file is damaged; use another one");
}

}  // namespace sluice::engine
