#include "offload/planner/placement_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "offload/planner/step_graph.h"

namespace sluice::offload {
namespace {

// Tasks of the step model over all predictions: this bounds the planner's time.
constexpr std::int64_t kMostTasks = 6'000'000;
constexpr std::int64_t kMostPoints = 1500;  // in the grid
constexpr std::size_t kSeeds = 4;           // points of the grid from which the search continues
constexpr int kEighths = 8;
constexpr double kTie = 1e-6;
constexpr double kNearly = 5e-4;  // longest relative increase of the step for which memory is freed

bool is_better(const PlacementSearch::Found& a, const PlacementSearch::Found& b) {
  if (a.excess_writes < b.excess_writes * (1 - kTie)) return true;
  if (b.excess_writes < a.excess_writes * (1 - kTie)) return false;
  if (a.step_s < b.step_s * (1 - kTie)) return true;
  return a.step_s <= b.step_s * (1 + kTie) && a.bytes < b.bytes;
}

std::int64_t tasks_of(const PlannerInput& input, const std::vector<UnitPlacement>& places) {
  constexpr std::int64_t kTasksOfUnit = 8;
  const std::uint64_t record = std::max<std::uint64_t>(input.step.record_elements, 1);
  std::int64_t records = 0;
  bool drives = false;
  for (const UnitPlacement& place : places) {
    records += static_cast<std::int64_t>((place.nvme_elements + record - 1) / record);
    drives = drives || place.nvme_elements > 0 || place.params_on_nvme;
  }
  const std::int64_t waves = std::min(input.step.waves.count(), StepGraph::kModelledWaves);
  const std::int64_t once =
      kTasksOfUnit * waves * static_cast<std::int64_t>(places.size()) + 3 * records;
  return drives ? 3 * once : once;
}

// At most `count` numbers from 0 to `most`, both included, evenly spaced.
std::vector<int> evenly(int most, int count) {
  std::vector<int> values;
  const int steps = std::min(most, count - 1);
  for (int i = 0; i <= steps; ++i) values.push_back(steps == 0 ? 0 : most * i / steps);
  return values;
}

}  // namespace

double excess_writes(const PlannerInput& input, const StepPrediction& step) {
  if (step.nvme_write_bytes == 0 || std::isinf(step.step_s)) return 0;
  return std::max(step.nvme_write_bytes / step.step_s - input.max_nvme_write_bytes_per_s, 0.0);
}

PlacementSearch::PlacementSearch(const PlannerInput& input)
    : input_(input), space_(input), tasks_left_(kMostTasks) {}

// ---- one placement ------------------------------------------------------------------------------

std::optional<PlacementSearch::Found> PlacementSearch::weigh(const PlacementKnobs& knobs) {
  const Key key = {knobs.gpu_elements,
                   static_cast<std::uint64_t>(knobs.resident),
                   static_cast<std::uint64_t>(knobs.kept),
                   static_cast<std::uint64_t>(knobs.offloaded),
                   static_cast<std::uint64_t>(knobs.spilled),
                   static_cast<std::uint64_t>(knobs.resident_spread),
                   static_cast<std::uint64_t>(knobs.kept_spread),
                   static_cast<std::uint64_t>(knobs.head_first),
                   static_cast<std::uint64_t>(knobs.gpu_even),
                   static_cast<std::uint64_t>(knobs.nvme_last)};
  if (exhausted() || !seen_.insert(key).second) return std::nullopt;
  const std::vector<UnitPlacement> places = space_.places(knobs);
  const TierBytes bytes = input_.ledger->bytes(places);
  if (!bytes.within(input_.budget)) return std::nullopt;
  tasks_left_ -= tasks_of(input_, places);
  const StepPrediction prediction = predict_step(input_.units, places, input_.speeds, input_.step);
  return Found{.knobs = knobs,
               .step_s = prediction.step_s,
               .bytes = bytes.total(),
               .excess_writes = excess_writes(input_, prediction)};
}

std::optional<PlacementSearch::Found> PlacementSearch::weigh_filled(PlacementKnobs knobs) {
  if (!space_.fill_residents(knobs)) return std::nullopt;
  return weigh(knobs);
}

PlacementKnobs PlacementSearch::knobs_of(const Point& point) const {
  return {.gpu_elements = space_.gpu_steps()[static_cast<std::size_t>(point.gpu_step)],
          .head_first = point.head_first,
          .gpu_even = point.gpu_even,
          .nvme_last = point.nvme_last,
          .kept = point.kept,
          .offloaded = point.offloaded,
          .spilled = space_.max_spilled(point.offloaded) * point.spilled_eighths / kEighths,
          .resident_spread = point.resident_spread,
          .kept_spread = point.kept_spread};
}

std::optional<PlacementSearch::Found> PlacementSearch::weigh_point(const Point& point) {
  return weigh_filled(knobs_of(point));
}

void PlacementSearch::keep_if_better(const std::optional<Found>& found) {
  if (found && (!best_ || is_better(*found, *best_))) best_ = found;
}

// ---- the grid -----------------------------------------------------------------------------------

bool PlacementSearch::fits_lean(int gpu_step, int kept) const {
  PlacementKnobs knobs{.gpu_elements = space_.gpu_steps()[static_cast<std::size_t>(gpu_step)],
                       .kept = kept};
  for (const int offloaded : {space_.max_offloaded(kept), 0}) {
    knobs.offloaded = offloaded;
    if (space_.fill_residents(knobs)) return true;
  }
  return false;
}

void PlacementSearch::find_bounds() {
  const auto most = [](int limit, const auto& fits) {
    int value = limit;
    while (value > 0 && !fits(value)) --value;
    return value;
  };
  const bool is_fixed = space_.min_gpu_elements() == space_.max_gpu_elements();
  max_gpu_step_ = is_fixed ? 0
                           : most(static_cast<int>(space_.gpu_steps().size()) - 1,
                                  [&](int step) { return fits_lean(step, space_.min_kept()); });
  max_kept_ = most(space_.max_kept(), [&](int kept) { return fits_lean(0, kept); });
}

void PlacementSearch::grid() {
  find_bounds();
  const int max_offloaded = space_.max_offloaded(space_.min_kept());
  const std::int64_t one = tasks_of(input_, space_.places({}));
  std::vector<int> gpu;
  std::vector<int> kept;
  std::vector<int> offloaded;
  for (const int count : {33, 17, 13, 9, 7, 5, 4, 3}) {
    gpu = evenly(max_gpu_step_, count);
    kept = evenly(max_kept_, count);
    offloaded = evenly(max_offloaded, count);
    const auto points = static_cast<std::int64_t>(gpu.size() * kept.size() * offloaded.size());
    if (points <= kMostPoints && points * one * 3 <= kMostTasks) break;
  }
  const auto weigh_all = [&](int spilled_eighths) {
    for (const int g : gpu) {
      for (const int k : kept) {
        for (const int o : offloaded) {
          for (const bool gpu_even : {false, true}) {
            const Point point{.gpu_step = g,
                              .kept = k,
                              .offloaded = o,
                              .spilled_eighths = spilled_eighths,
                              .gpu_even = gpu_even};
            const auto found = weigh_point(point);
            if (found) seeds_.push_back({point, *found});
            if (g == 0) break;
          }
        }
      }
    }
  };
  weigh_all(0);
  // If RAM is too small for inputs, they may fit on the drives.
  if (seeds_.empty()) weigh_all(kEighths);
  std::stable_sort(seeds_.begin(), seeds_.end(), [](const Seed& a, const Seed& b) {
    const auto order = [](const Found& it) {
      return std::tuple(it.excess_writes, it.step_s, it.bytes);
    };
    return order(a.found) < order(b.found);
  });
  if (seeds_.size() > kSeeds) seeds_.resize(kSeeds);
}

// ---- refinement ---------------------------------------------------------------------------------

bool PlacementSearch::refine(Seed& seed, int gpu_step, int kept, int offloaded) {
  Point point = seed.point;
  point.gpu_step = std::clamp(point.gpu_step + gpu_step, 0, max_gpu_step_);
  point.kept = std::clamp(point.kept + kept, space_.min_kept(), max_kept_);
  point.offloaded = std::clamp(point.offloaded + offloaded, 0, space_.max_offloaded(point.kept));
  const auto found = weigh_point(point);
  if (!found || !is_better(*found, seed.found)) return false;
  seed = {point, *found};
  return true;
}

// Varies the knobs that are not numbers, one after another.
void PlacementSearch::vary(Seed& seed) {
  constexpr std::array<Spread, 3> kSpreads = {Spread::kEven, Spread::kFirst, Spread::kLast};
  const auto keep_better = [&](const Point& point) {
    const auto found = weigh_point(point);
    if (found && is_better(*found, seed.found)) seed = {point, *found};
  };
  const Point from = seed.point;
  for (const bool head_first : {false, true}) {
    for (const bool gpu_even : {false, true}) {
      for (const bool nvme_last : {false, true}) {
        Point point = from;
        point.head_first = head_first;
        point.gpu_even = gpu_even;
        point.nvme_last = nvme_last;
        keep_better(point);
      }
    }
  }
  for (const int eighths : {1, 2, 3, 4, 6, 8}) {
    Point point = seed.point;
    point.spilled_eighths = eighths;
    if (space_.max_spilled(point.offloaded) > 0) keep_better(point);
  }
  const Point ordered = seed.point;
  for (const Spread resident : kSpreads) {
    for (const Spread kept : kSpreads) {
      Point point = ordered;
      point.resident_spread = resident;
      point.kept_spread = kept;
      keep_better(point);
    }
  }
}

// Changes the three numbers in ever smaller steps: one of them, or several at once.
void PlacementSearch::refine(Seed seed) {
  vary(seed);
  for (int step = std::max({max_gpu_step_, max_kept_, space_.units()}) / 4; step > 0; step /= 2) {
    for (bool improved = true; improved && !exhausted();) {
      improved = false;
      for (int direction = 0; direction < 27 && !improved; ++direction) {
        improved = refine(seed, (direction % 3 - 1) * step, (direction / 3 % 3 - 1) * step,
                          (direction / 9 - 1) * step);
      }
    }
  }
  vary(seed);
  keep_if_better(seed.found);
}

// Adds as much state as still fits on the GPU, if that is less than a grid step: first with the
// same number of residents, then with fewer.
void PlacementSearch::fill_with_part() {
  if (!best_ || space_.min_gpu_elements() == space_.max_gpu_elements()) return;
  const std::uint64_t granule = std::max<std::uint64_t>(input_.granule_elements, 1);
  for (const bool keep_residents : {true, false}) {
    const PlacementKnobs from = best_->knobs;
    const std::vector<std::uint64_t>& steps = space_.gpu_steps();
    const auto next = std::upper_bound(steps.begin(), steps.end(), from.gpu_elements);
    if (next == steps.end()) return;
    const auto with = [&](std::uint64_t granules) {
      PlacementKnobs knobs = from;
      knobs.gpu_elements = std::min(from.gpu_elements + granules * granule, *next);
      return knobs;
    };
    const auto fits = [&](std::uint64_t granules) {
      PlacementKnobs knobs = with(granules);
      if (!space_.fill_residents(knobs)) return false;
      return !keep_residents || knobs.resident >= from.resident - 1;
    };
    std::uint64_t fitting = 0;
    for (std::uint64_t too_many = (*next - from.gpu_elements) / granule + 2;
         too_many - fitting > 1;) {
      const std::uint64_t middle = (fitting + too_many) / 2;
      (fits(middle) ? fitting : too_many) = middle;
    }
    if (fitting > 0) keep_if_better(weigh_filled(with(fitting)));
  }
}

// The smallest value of each knob for which the step is nearly as short, without more bytes.
void PlacementSearch::give_back() {
  if (!best_) return;
  const double max_s = best_->step_s * (1 + kNearly);
  for (int PlacementKnobs::*const number : {&PlacementKnobs::spilled, &PlacementKnobs::offloaded,
                                            &PlacementKnobs::resident, &PlacementKnobs::kept}) {
    int too_few = -1;
    for (int enough = best_->knobs.*number; enough - too_few > 1;) {
      const int middle = too_few + (enough - too_few) / 2;
      PlacementKnobs knobs = best_->knobs;
      knobs.*number = middle;
      const auto found = weigh(knobs);
      const bool is_enough = found && found->step_s <= max_s && found->bytes <= best_->bytes &&
                             found->excess_writes <= best_->excess_writes;
      if (is_enough) best_ = found;
      (is_enough ? enough : too_few) = middle;
    }
  }
}

std::optional<PlacementSearch::Found> PlacementSearch::run() {
  grid();
  for (const Seed& seed : seeds_) {
    keep_if_better(seed.found);
    refine(seed);
  }
  tasks_left_ = std::max<std::int64_t>(tasks_left_, kMostTasks / 8);
  seen_.clear();  // a placement that was no better may be nearly as good
  fill_with_part();
  give_back();
  return best_;
}

}  // namespace sluice::offload
