// PlacementSearch: the best of a PlacementSpace. See placement_planner.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "offload/planner/placement.h"
#include "offload/planner/placement_space.h"

namespace sluice::offload {

// What a step writes to drives per second above what is allowed.
double excess_writes(const PlannerInput& input, const StepPrediction& step);

class PlacementSearch {
 public:
  struct Found {
    PlacementKnobs knobs;
    double step_s = 0;
    std::uint64_t bytes = 0;
    double excess_writes = 0;  // per second, above max_nvme_write_bytes_per_s
  };

  explicit PlacementSearch(const PlannerInput& input);

  // Empty: no placement within the budget was found.
  std::optional<Found> run();
  const PlacementSpace& space() const { return space_; }

 private:
  using Key = std::array<std::uint64_t, 10>;
  // A point of the grid, or a change of one.
  struct Point {
    int gpu_step = 0;  // index in the space's gpu_steps()
    int kept = 0;
    int offloaded = 0;
    int spilled_eighths = 0;  // of the inputs that may be spilled
    Spread resident_spread = Spread::kEven;
    Spread kept_spread = Spread::kEven;
    bool head_first = false;
    bool gpu_even = false;
    bool nvme_last = false;
  };
  struct Seed {
    Point point;
    Found found;
  };

  std::optional<Found> weigh(const PlacementKnobs& knobs);
  std::optional<Found> weigh_filled(PlacementKnobs knobs);
  std::optional<Found> weigh_point(const Point& point);
  PlacementKnobs knobs_of(const Point& point) const;
  bool fits_lean(int gpu_step, int kept) const;
  void find_bounds();
  void grid();
  void refine(Seed seed);
  bool refine(Seed& seed, int gpu_step, int kept, int offloaded);
  void vary(Seed& seed);
  void fill_with_part();
  void give_back();
  void keep_if_better(const std::optional<Found>& found);
  bool exhausted() const { return tasks_left_ <= 0; }

  const PlannerInput& input_;
  const PlacementSpace space_;
  std::int64_t tasks_left_;
  int max_gpu_step_ = 0;
  int max_kept_ = 0;
  std::set<Key> seen_;
  std::vector<Seed> seeds_;
  std::optional<Found> best_;
};

}  // namespace sluice::offload
