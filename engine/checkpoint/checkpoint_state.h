// What a checkpoint holds beside weights and moments: all that the next step depends on, and what
// the run has to be for the next step to have the same bits. Plain numbers and text; the training
// loop converts its own to and from them.
#pragma once

#include <cstdint>
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

// Where in the run it was taken. Nothing of it is negative, but last_overflow_step.
struct StoredPosition {
  std::int64_t global_step = 0;   // steps taken, skipped ones included
  std::int64_t applied_step = 0;  // updates applied; at most global_step
  std::uint64_t samples_drawn = 0;
  std::int64_t skipped_in_a_row = 0;  // by run.non_finite_step, the last step among them
  StoredLossScale loss_scale;

  friend bool operator==(const StoredPosition&, const StoredPosition&) = default;
};

// Stands where the precision of a run would: no run wrote it, it was made of weights alone.
inline constexpr std::string_view kImportedPrecision = "imported";

// What a run must have in common with the one that wrote it, to go on with the same bits.
struct StoredRun {
  std::uint64_t seed = 0;
  std::string data_order;  // a fingerprint of which samples come when
  std::string precision;   // "bf16", "fp16", "fp32", or kImportedPrecision
  int cpu_threads = 0;
  std::map<std::string, std::int64_t> model;  // the shape: {"layers", 12}, ...
  double dropout = 0;
  std::string family = "gpt2";
  std::map<std::string, double> family_numbers;  // what only this family has

  // Then seed, order and threads are those of nobody, and any run of the model's shape may begin
  // there.
  bool imported() const { return precision == kImportedPrecision; }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

struct CheckpointState {
  StoredPosition position;
  StoredRun run;
  std::optional<double> loss;             // of the last step; one that is not finite is not stored
  std::optional<double> validation_loss;  // likewise
  std::string configuration;              // resolved, as JSON text
  std::string program_version;

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

// One clause for each thing in which the two differ, as in "run.seed is 7, and was 42 when the
// checkpoint was written"; empty: the run can go on bit for bit. Of an imported checkpoint the
// model's shape alone is compared.
std::vector<std::string> run_differences(const StoredRun& stored, const StoredRun& now);

}  // namespace sluice::engine
