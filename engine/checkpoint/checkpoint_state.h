// What a checkpoint holds besides weights and moments: everything that the next step depends on,
// and what must hold of the run for the next step to have the same bits. Plain numbers and text;
// the training loop converts its own to and from them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::engine {

struct StoredLossScale {
  double scale = 1;
  std::int64_t steps = 0;
  std::int64_t last_overflow_step = -1;
  int hysteresis_left = 1;

  friend bool operator==(const StoredLossScale&, const StoredLossScale&) = default;
};

// Where in the run it was taken. None of it is negative, except last_overflow_step.
struct StoredPosition {
  std::int64_t global_step = 0;   // steps taken, skipped ones included
  std::int64_t applied_step = 0;  // updates applied; at most global_step
  std::uint64_t samples_drawn = 0;
  std::int64_t skipped_in_a_row = 0;  // by run.non_finite_step, the last step among them
  StoredLossScale loss_scale;

  friend bool operator==(const StoredPosition&, const StoredPosition&) = default;
};

// Stands in place of a run's precision: no run wrote it, it was made from weights alone.
inline constexpr std::string_view kImportedPrecision = "imported";

// Adapters that a run trains beside a frozen model: their recipe (LoraRecipe), and fingerprints of
// the model's weights, which no checkpoint holds: of all, and of a sample (empty: of an older one).
struct StoredAdapters {
  std::int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilised = false;
  double dropout = 0;
  std::int64_t base_bits = 16;
  std::vector<std::string> targets;
  std::string base;
  std::string base_sample;

  friend bool operator==(const StoredAdapters&, const StoredAdapters&) = default;
};

// How gradients are added up: offload::SumOrder. Others have other last bits.
struct SumsOfRun {
  // Of tied weights: each use of a parameter has a sum of its own. Unset: of a program that added
  // them up together; or no parameter is shared.
  bool by_use = false;
  std::int64_t lanes = 1;
  std::int64_t rounds = 1;

  friend bool operator==(const SumsOfRun&, const SumsOfRun&) = default;
};

// What a run must have in common with the one that wrote it, to continue with the same bits.
struct StoredRun {
  std::uint64_t seed = 0;
  std::string data_order;  // a fingerprint of which samples come when
  std::string precision;   // "bf16", "fp16", "fp32", or kImportedPrecision
  int cpu_threads = 0;
  std::map<std::string, std::int64_t> model;  // the shape: {"layers", 12}, ...
  double dropout = 0;
  SumsOfRun sums;
  std::string family = "gpt2";
  std::map<std::string, double> family_numbers;  // what only this family has
  std::optional<StoredAdapters> adapters;        // unset: the model itself is trained

  // Then seed, order and threads are no run's, and any run of the model's shape may begin there.
  bool imported() const { return precision == kImportedPrecision; }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

struct CheckpointState {
  StoredPosition position;
  StoredRun run;
  std::optional<double> loss;             // of the last step; one that is not finite is not stored
  std::optional<double> validation_loss;  // likewise
  std::string configuration;              // resolved, as JSON text
  std::string client;  // of a program that trains by the Python package: any text of its own
  std::string program_version;

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

// One clause for each thing in which the two differ, as in "run.seed is 7, and was 42 when the
// checkpoint was written"; empty: the run can continue bit for bit. For an imported checkpoint only
// the model's shape is compared. `text`: of a family's number, which may stand for a word; empty:
// the number.
using FamilyNumberText = std::function<std::string(const std::string& name, double value)>;
std::vector<std::string> run_differences(const StoredRun& stored, const StoredRun& now,
                                         const FamilyNumberText& text = {});

}  // namespace sluice::engine
