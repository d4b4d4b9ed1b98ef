// The contents of a checkpoint besides weights and moments: everything that the next step depends
// on, and what must match in the run for the next step to be bit-identical. Plain numbers and text;
// the training loop converts its own types to and from them.
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

// The position in the run. Nothing is negative except last_overflow_step.
struct StoredPosition {
  std::int64_t global_step = 0;   // steps taken, skipped ones included
  std::int64_t applied_step = 0;  // updates applied; at most global_step
  std::uint64_t samples_drawn = 0;
  std::int64_t skipped_in_a_row = 0;  // by run.non_finite_step, up to the last step
  StoredLossScale loss_scale;

  friend bool operator==(const StoredPosition&, const StoredPosition&) = default;
};

// Replaces a run's precision if the checkpoint was made from weights alone, not by a run.
inline constexpr std::string_view kImportedPrecision = "imported";

// Replaces a family for a module of a Python program, which alone can compute its passes.
inline constexpr std::string_view kModuleFamily = "module";

// Adapters that a run trains on a frozen model. Has their recipe (LoraRecipe) and fingerprints of
// the model's weights, which no checkpoint contains: one of all weights, and one of a sample (empty
// in older checkpoints).
struct StoredAdapters {
  std::int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilised = false;
  double dropout = 0;
  std::int64_t base_bits = 16;
  bool double_quant = false;
  std::vector<std::string> targets;
  std::string base;
  std::string base_sample;

  friend bool operator==(const StoredAdapters&, const StoredAdapters&) = default;
};

// The order of gradient sums: offload::SumOrder. Another order may change last bits.
struct SumsOfRun {
  // For tied weights: each use of a parameter has its own sum. False: the program added them
  // together, or no parameter is shared.
  bool by_use = false;
  std::int64_t lanes = 1;
  std::int64_t rounds = 1;

  friend bool operator==(const SumsOfRun&, const SumsOfRun&) = default;
};

// What must match in a resumed run for it to continue bit for bit.
struct StoredRun {
  std::uint64_t seed = 0;
  std::string data_order;  // a fingerprint of the samples and their order
  std::string precision;   // "bf16", "fp16", "fp32", or kImportedPrecision
  int cpu_threads = 0;
  std::map<std::string, std::int64_t> model;  // the shape: {"layers", 12}, ...
  double dropout = 0;
  SumsOfRun sums;
  std::string family = "gpt2";
  std::map<std::string, double> family_numbers;  // numbers that only this family has
  std::map<std::string, std::vector<double>> family_lists = {};  // ModelShape::lists
  std::optional<StoredAdapters> adapters;  // unset: the model itself is trained

  // Then seed, order and threads belong to no run, and any run of this model shape may start from
  // it.
  bool imported() const { return precision == kImportedPrecision; }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

// The run's evaluations up to the checkpoint.
struct StoredEvaluations {
  std::optional<double> lowest_loss;  // unset: none was finite
  std::int64_t lowest_step = 0;
  std::int64_t without_improvement = 0;  // consecutive, up to the last one

  friend bool operator==(const StoredEvaluations&, const StoredEvaluations&) = default;
};

struct CheckpointState {
  StoredPosition position;
  StoredRun run;
  std::optional<double> loss;             // of the last step; not stored if not finite
  std::optional<double> validation_loss;  // not stored if not finite
  // Of a run that keeps its best checkpoint or stops early.
  std::optional<StoredEvaluations> evaluations = {};
  std::string configuration;  // resolved, as JSON text
  std::string client;         // arbitrary text of a program that trains through the Python package
  std::string program_version;

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

// "[1.0,1.25]".
std::string list_text(const std::vector<double>& values);

// One clause for each difference, as in "run.seed is 7, and was 42 when the checkpoint was
// written". Empty: the run can continue bit for bit. For an imported checkpoint only the model's
// shape is compared. `text` converts a family's number, which may stand for a word; empty: the
// number is printed.
using FamilyNumberText = std::function<std::string(const std::string& name, double value)>;
std::vector<std::string> run_differences(const StoredRun& stored, const StoredRun& now,
                                         const FamilyNumberText& text = {});

}  // namespace sluice::engine
