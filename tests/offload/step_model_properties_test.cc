// Properties for any model, placement and machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "offload/planner/placement_space.h"
#include "offload/planner/step_model.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kSeeds = 150;

struct Case {
  RandomModel model;
  std::vector<UnitPlacement> places;
  StepModelOptions options;

  explicit Case(std::uint64_t seed, bool sharing) {
    std::mt19937_64 random(seed);
    model = random_model(random, 1 + static_cast<int>(random() % 6), sharing);
    options = {.overlap_update = random() % 2 == 0,
               .prefetch_units = static_cast<int>(random() % 3),
               .record_elements = 100'000 + random() % 500'000,
               .swap_buffer_elements = random() % 4'000'000};
    for (const UnitCost& unit : model.units) places.push_back(place(unit, random));
  }

  static UnitPlacement place(const UnitCost& unit, std::mt19937_64& random) {
    UnitPlacement place;
    place.gpu_elements = random() % 2 == 0 ? random() % (unit.elements + 1) : 0;
    const std::uint64_t left = unit.elements - place.gpu_elements;
    place.nvme_elements = random() % 2 == 0 ? random() % (left + 1) : 0;
    place.cpu_elements = left - place.nvme_elements;
    place.resident = place.gpu_elements > 0 || random() % 2 == 0;
    place.params_on_nvme = left > 0 && random() % 4 == 0;
    place.activations = static_cast<ActivationPlace>(random() % 3);
    return place;
  }

  double step_s() const { return with(model.speeds); }
  double with(const MachineSpeeds& speeds) const {
    return predict_step(model.units, places, speeds, options).step_s;
  }
};

TEST(StepModelProperty, IsAtLeastEveryResourcesWork) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case it(seed, true);
    const MachineSpeeds& speeds = it.model.speeds;
    const StepPrediction step = predict_step(it.model.units, it.places, speeds, it.options);
    double gpu_s = 0;
    double cpu_elements = 0;
    double nvme_elements = 0;
    for (std::size_t i = 0; i < it.places.size(); ++i) {
      const UnitCost& unit = it.model.units[i];
      const UnitPlacement& place = it.places[i];
      gpu_s += unit.forward_s + unit.backward_s;
      if (place.activations != ActivationPlace::kKeep) gpu_s += unit.recompute_s;
      gpu_s += static_cast<double>(place.gpu_elements) / speeds.gpu_adamw_elements_per_s;
      cpu_elements += static_cast<double>(place.cpu_elements + place.nvme_elements);
      nvme_elements += static_cast<double>(place.nvme_elements);
    }
    EXPECT_NEAR(step.busy(Resource::kGpu), gpu_s, kClose * gpu_s);
    const double least = 1 - kClose;
    EXPECT_GE(step.step_s, gpu_s * least);
    EXPECT_GE(step.step_s, cpu_elements / speeds.cpu_adamw_elements_per_s * least);
    EXPECT_GE(step.step_s, step.h2d_bytes / speeds.bus.in_bytes_per_s * least);
    EXPECT_GE(step.step_s, step.d2h_bytes / speeds.bus.out_bytes_per_s * least);
    EXPECT_GE(step.nvme_read_bytes, 10 * nvme_elements * least);
    EXPECT_GE(step.nvme_write_bytes, 10 * nvme_elements * least);
    for (const double busy_s : step.busy_s) EXPECT_LE(busy_s, step.step_s * (1 + kClose));
  }
}

TEST(StepModelProperty, IsTwiceAsFastOnAMachineThatIs) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Case it(seed, true);
    const double before_s = it.step_s();
    MachineSpeeds& speeds = it.model.speeds;
    for (DuplexRates* const duplex : {&speeds.bus, &speeds.drives}) {
      duplex->in_bytes_per_s *= 2;
      duplex->out_bytes_per_s *= 2;
      duplex->in_both_bytes_per_s *= 2;
      duplex->out_both_bytes_per_s *= 2;
    }
    speeds.host_copy_bytes_per_s *= 2;
    speeds.cpu_adamw_elements_per_s *= 2;
    speeds.gpu_adamw_elements_per_s *= 2;
    for (UnitCost& unit : it.model.units) {
      unit.forward_s /= 2;
      unit.recompute_s /= 2;
      unit.backward_s /= 2;
    }
    EXPECT_NEAR(it.step_s(), before_s / 2, 1e-6 * before_s) << "seed " << seed;
  }
}

// Exact for resources that do not slow each other. Otherwise work that ends sooner may disturb
// other work at a worse time, so a small tolerance is allowed.
TEST(StepModelProperty, IsNeverSlowerWithAFasterResource) {
  for (const bool sharing : {false, true}) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const Case it(seed, sharing);
      const double before_s = it.step_s();
      const auto faster = [&](const auto& change) {
        MachineSpeeds speeds = it.model.speeds;
        change(speeds);
        return it.with(speeds);
      };
      const auto quicken = [](DuplexRates& rates) {
        rates = {1.5 * rates.in_bytes_per_s, 1.5 * rates.out_bytes_per_s,
                 1.5 * rates.in_both_bytes_per_s, 1.5 * rates.out_both_bytes_per_s};
      };
      const double max_s = before_s * (sharing ? 1.05 : 1 + 1e-6);
      EXPECT_LE(faster([&](MachineSpeeds& machine) { quicken(machine.bus); }), max_s)
          << "seed " << seed;
      EXPECT_LE(faster([&](MachineSpeeds& machine) { quicken(machine.drives); }), max_s)
          << "seed " << seed;
      EXPECT_LE(faster([](MachineSpeeds& machine) { machine.cpu_adamw_elements_per_s *= 1.5; }),
                max_s)
          << "seed " << seed;
      EXPECT_LE(faster([](MachineSpeeds& machine) { machine.gpu_adamw_elements_per_s *= 1.5; }),
                max_s)
          << "seed " << seed;
      EXPECT_LE(faster([](MachineSpeeds& machine) { machine.host_copy_bytes_per_s *= 1.5; }), max_s)
          << "seed " << seed;
    }
  }
}

TEST(StepModelProperty, MovesTwentyBytesOnDrivesForEachElementThere) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Case it(seed, true);
    double elements = 0;
    for (UnitPlacement& place : it.places) {
      place.params_on_nvme = false;
      elements += static_cast<double>(place.nvme_elements);
    }
    const StepPrediction step =
        predict_step(it.model.units, it.places, it.model.speeds, it.options);
    EXPECT_NEAR(step.nvme_read_bytes + step.nvme_write_bytes, 20 * elements, 1e-6 * elements + 1e-6)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::offload
