// Placements of any kind that a planner may choose, and of kinds that it does not.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "engine/model/model_layout.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

// Elements are cut anywhere. Each thing that the planner may do to a unit happens to some unit.
class RandomPlaces {
 public:
  explicit RandomPlaces(std::uint64_t seed) : random_(seed) {}

  std::vector<offload::UnitPlacement> of(const ModelLayout& model, bool on_gpu = true) {
    const bool drives = chance(70);
    const bool parameters_too = drives && chance(50);
    const bool whole_units = chance(50);
    const int residents = below(101);
    const int kept = below(101);
    const int leaving = chance(50) ? below(101) : 0;
    std::vector<offload::UnitPlacement> places;
    for (int unit = 0; unit < model.units(); ++unit) {
      const std::uint64_t elements = model.layout(unit).elements;
      offload::UnitPlacement place;
      if (whole_units) {
        const int tier = below(drives ? 3 : 2);
        (tier == 0   ? place.gpu_elements
         : tier == 1 ? place.cpu_elements
                     : place.nvme_elements) = elements;
      } else {
        place.gpu_elements = chance(50) ? up_to(elements) : 0;
        const std::uint64_t on_host = elements - place.gpu_elements;
        place.nvme_elements = drives ? up_to(on_host) : 0;
        place.cpu_elements = on_host - place.nvme_elements;
      }
      if (!on_gpu) place.cpu_elements += std::exchange(place.gpu_elements, 0);
      const bool is_block = model.is_block(unit);
      place.resident = !is_block || place.gpu_elements > 0 || chance(residents);
      place.params_on_nvme = parameters_too && place.gpu_elements < elements && chance(50);
      // At least one input stays.
      const bool is_last_block = unit + 2 >= model.units();
      if (is_block && chance(kept))
        place.activations = offload::ActivationPlace::kKeep;
      else if (is_block && !is_last_block && chance(leaving))
        place.activations = drives && chance(30) ? offload::ActivationPlace::kSpill
                                                 : offload::ActivationPlace::kOffload;
      places.push_back(place);
    }
    return places;
  }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<std::uint64_t>(end)); }
  bool chance(int percent) { return below(100) < percent; }
  std::uint64_t up_to(std::uint64_t most) { return random_() % (most + 1); }

  std::mt19937_64 random_;
};

}  // namespace sluice::engine
