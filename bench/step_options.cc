#include "bench/step_options.h"

#include <CLI/CLI.hpp>

#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr int kMostSteps = 1'000'000;

constexpr const char* kDescription =
    "Measures whole training steps of a configuration, as `sluice train` runs them, on "
    "random\ntokens: no corpus is needed, and nothing is saved. The plan is printed first, then "
    "the median\nstep, tokens per second, where the time went, the memory used, and the traffic on "
    "each bus.";

constexpr const char* kExamples =
    "Examples:\n  step_bench configs/gpt2_xl_24gb.json --json xl.json\n  step_bench "
    "configs/gpt2_xl_24gb.json --profile xl_trace.json\n  step_bench configs/gpt2_xl_24gb.json "
    "--set zero_optimization.offload_optimizer.device=nvme \\\n      --set "
    "budget.nvme_paths='[\"/nvme\"]' --steps 4 --warmup 2\n  step_bench configs/gpt2_small.json "
    "--set model.layers=2 --set run.device=cpu\n\nExit codes: 0 done; 1 an error; 2 a mistake in "
    "the options, or no room; 3 GPU or host memory is\ntoo small; 130 Ctrl-C, with what was "
    "measured until then.";

}  // namespace

Result<std::optional<StepBenchOptions>> parse_step_command_line(int argc, const char* const* argv) {
  StepBenchOptions to;
  CLI::App app(kDescription, "step_bench");
  app.footer(kExamples);
  tools::add_config_options(app, to.config);
  app.add_option("--steps", to.steps, "measured steps, of which medians are shown [10]")
      ->type_name("N")
      ->default_val(10)
      ->check(CLI::Range(1, kMostSteps));
  app.add_option("--warmup", to.warmup, "warm-up steps before them, at least one [3]")
      ->type_name("N")
      ->default_val(3)
      ->check(CLI::Range(1, kMostSteps));
  app.add_option("--seconds", to.seconds, "measure no longer than this, and at least one step")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app.add_option("--commit", to.commit, "title of the measurement, for the result")
      ->type_name("ID");
  app.add_option("--json", to.json, "write all numbers to this file; -: standard output")
      ->type_name("FILE");
  app.add_option("--profile", to.profile,
                 "record two more steps: the GPU's time by kernel in a table and in --json, and a "
                 "trace for Perfetto in this file")
      ->type_name("FILE");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<StepBenchOptions>();
  return std::optional<StepBenchOptions>(std::move(to));
}

}  // namespace sluice::bench
