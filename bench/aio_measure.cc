#include "bench/aio_measure.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice::bench {
namespace {

class Measurement {
 public:
  Measurement(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
              tools::ProgressLine& progress)
      : session_(session),
        options_(options),
        interrupt_(interrupt),
        progress_(progress),
        pattern_seed_(options.seed) {}

  Result<RunResult> run(Mode mode, int number) {
    const std::string what = std::string(to_string(mode)) + ", run " + std::to_string(number + 1) +
                             " of " + std::to_string(options_.runs);
    // Different data each time: a write that never happened would leave the previous run's pattern.
    if (mode == Mode::kWrite) ++pattern_seed_;
    RunPlan plan{.mode = mode,
                 .range_bytes = options_.size_bytes,
                 .seconds = options_.seconds,
                 .ramp_seconds = options_.ramp_seconds,
                 .pattern_seed = std::nullopt,
                 .random_seed = options_.seed + static_cast<std::uint64_t>(runs_done_)};
    if (options_.verify) plan.pattern_seed = pattern_seed_;
    const double seconds_each = plan.seconds + plan.ramp_seconds;
    const double runs_in_all = options_.runs * static_cast<double>(options_.modes.size());
    SLUICE_ASSIGN_OR_RETURN(
        RunResult result,
        run_measured(session_, plan, interrupt_, [&](double fraction, double gb_per_s) {
          progress_.update(what,
                           {.fraction = fraction,
                            .gb_per_s = gb_per_s,
                            .seconds_left = (runs_in_all - runs_done_ - fraction) * seconds_each});
        }));
    ++runs_done_;
    if (!result.has_every_kind() && !result.interrupted)
      return nothing_completed(result, plan.seconds);
    if (options_.verify && writes(mode) && !result.interrupted) {
      SLUICE_RETURN_IF_ERROR(read_back(what, result));
    }
    return result;
  }

 private:
  Status read_back(const std::string& what, RunResult& result) {
    const auto show = [&](const char* doing) {
      return [this, text = what + doing](double fraction, double gb_per_s) {
        progress_.update(text, {.fraction = fraction, .gb_per_s = gb_per_s});
      };
    };
    PassPlan plan{.range_bytes = options_.size_bytes, .pattern_seed = pattern_seed_};
    if (result.mode == Mode::kWrite) {
      plan.first_block = result.issued_blocks;
      SLUICE_RETURN_IF_ERROR(write_pass(session_, plan, interrupt_, show(": writing the rest")));
      plan.first_block = 0;
    }
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t checked,
                            check_pass(session_, plan, interrupt_, show(": reading back")));
    result.verified_bytes += checked;
    return {};
  }

  AioSession& session_;
  const AioOptions& options_;
  const tools::Interrupt& interrupt_;
  tools::ProgressLine& progress_;
  std::uint64_t pattern_seed_;  // the seed of the file's content
  int runs_done_ = 0;
};

}  // namespace

Status measure(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
               tools::ProgressLine& progress, std::FILE* table, std::vector<ModeRuns>& results) {
  Measurement measurement(session, options, interrupt, progress);
  const auto print = [&](const std::string& line) {
    progress.clear();
    std::fputs(line.c_str(), table);
    std::fflush(table);
  };
  print(table_heading());
  for (const Mode mode : options.modes) {
    std::vector<RunResult>& runs = results.emplace_back(ModeRuns{mode, {}}).runs;
    for (int number = 0; number < options.runs && !interrupt.requested(); ++number) {
      SLUICE_ASSIGN_OR_RETURN(RunResult result, measurement.run(mode, number));
      if (result.operations == 0 && result.interrupted) break;
      print(table_row(result, std::to_string(number + 1)));
      runs.push_back(std::move(result));
    }
    const auto complete = std::count_if(runs.begin(), runs.end(),
                                        [](const RunResult& run) { return !run.interrupted; });
    if (complete > 1) print(table_row(median_run(runs), "median"));
    if (interrupt.requested()) break;
  }
  return {};
}

}  // namespace sluice::bench
