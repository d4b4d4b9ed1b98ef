// RunView: the state of a run at one moment, as numbers and sentences. Plain data; unknown values
// are missing. Texts are unescaped, as in the run's files: code that shows them has to escape them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/run_record.h"
#include "tools/watch/run_phase.h"

namespace sluice::watch {

struct TierView {
  std::string name;  // "gpu", "cpu", "nvme"
  std::optional<double> planned_bytes;
  std::optional<double> budget_bytes;
  std::optional<double> used_bytes;  // GPU: peak so far; host: resident now
};

struct Happening {
  std::int64_t step = 0;
  double unix_s = 0;
  enum class Kind : std::uint8_t { kBegin, kCheckpoint, kWarning, kBad, kEnd } kind = Kind::kBegin;
  std::string text;
};

// What the run's last life recorded at its begin, and what happened since the run began.
struct RunFacts {
  std::optional<std::int64_t> total_steps;
  std::optional<std::int64_t> ranks;
  std::string model;  // "gpt2, 124M parameters"
  std::string gpu;
  std::string cpu;
  std::vector<TierView> tiers;
  std::optional<double> planned_step_s;
  std::optional<double> planned_tokens_per_s;
  std::string bottleneck;                            // as planned
  std::vector<std::pair<std::string, double>> busy;  // by resource: its share of the planned step
  std::int64_t begins = 0;
  std::int64_t begin_step = 0;
  double begin_unix_s = 0;
  std::optional<RunPhase> end;
  std::string end_reason;
  double end_unix_s = 0;
  std::int64_t checkpoints = 0;
  std::int64_t failed_checkpoints = 0;
  std::int64_t warnings = 0;
  std::optional<std::int64_t> last_checkpoint;
  double last_checkpoint_unix_s = 0;
  std::optional<std::int64_t> last_attempt;  // the last attempt, saved or not
  std::int64_t eval_every = 0;               // from the configuration
  std::int64_t checkpoint_every = 0;
  std::vector<Happening> happenings;  // the last ones, in file order
};

// Derives the facts from a run's events and configuration.
RunFacts facts_of(const report::RunRecord& record);

// One line of the metrics.
struct StepLine {
  std::int64_t step = 0;
  bool skipped = false;
  std::vector<double> values;  // by report::metric_columns(); not finite: unknown

  std::optional<double> value(std::string_view column) const;
};

struct RunView {
  std::string name;
  std::string path;
  RunPhase phase = RunPhase::kWaiting;
  RunFacts facts;
  std::optional<StepLine> last;
  std::optional<double> val_loss;  // the last one; below, the least
  std::optional<double> least_val_loss;
  std::optional<double> left_s;
  double since_last_s = 0;  // since the last line
  std::int64_t lines = 0;
  std::int64_t skipped = 0;
  std::int64_t not_finite = 0;

  // Means of the last steps.
  std::int64_t mean_of = 0;  // number of steps
  std::optional<double> tokens_per_s;
  std::optional<double> step_ms;
  std::array<double, 4> parts{};          // shares of the step's time, by kPartNames
  std::optional<double> nvme_read_bytes;  // per step
  std::optional<double> nvme_write_bytes;
  std::optional<double> h2d_bytes;
  std::optional<double> d2h_bytes;
  std::optional<double> gpu_utilization_percent;
  std::optional<double> gpu_power_watts;
  std::optional<double> gpu_throttled_percent;

  double written_bytes = 0;  // to the drives, over the whole run
  double read_bytes = 0;
  std::optional<double> written_a_day;  // at the current speed
  std::vector<TierView> tiers;
  std::vector<std::string> notices;
};

inline constexpr std::array<const char*, 4> kPartNames = {"forward", "backward", "update wait",
                                                          "other"};

}  // namespace sluice::watch
