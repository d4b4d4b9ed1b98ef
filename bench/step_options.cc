#include "bench/step_options.h"

#include <CLI/CLI.hpp>

#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr int kMostSteps = 1'000'000;

constexpr const char* kDescription =
    "Measures whole training steps of a configuration, as `sluice train` would run them, on "
    "random\n"
    "tokens: no corpus is needed, and nothing is saved. The plan is printed first, then the "
    "median\n"
    "step, tokens a second, where the time went, and what the run took of each memory and moved\n"
    "over each bus.";

constexpr const char* kExamples =
    "Examples:\n"
    "  step_bench configs/gpt2_xl_24gb.json --json xl.json\n"
    "  step_bench configs/gpt2_xl_24gb.json --profile xl_trace.json\n"
    "  step_bench configs/gpt2_xl_24gb.json --set zero_optimization.offload_optimizer.device=nvme "
    "\\\n"
    "      --set budget.nvme_paths='[\"/nvme\"]' --steps 4 --warmup 2\n"
    "  step_bench configs/gpt2_small.json --set model.layers=2 --set run.device=cpu\n"
    "\n"
    "Exit codes: 0 done; 1 an error; 2 a mistake in the options, or no room; 3 the memory of GPU "
    "or\n"
    "host is too small; 130 Ctrl-C, with what was measured until then.";

}  // namespace

Result<std::optional<StepBenchOptions>> parse_step_command_line(int argc, const char* const* argv) {
  StepBenchOptions to;
  CLI::App app(kDescription, "step_bench");
  app.footer(kExamples);
  tools::add_config_options(app, to.config);
  app.add_option("--steps", to.steps, "measured; medians are shown [10]")
      ->type_name("N")
      ->default_val(10)
      ->check(CLI::Range(1, kMostSteps));
  app.add_option("--warmup", to.warmup, "steps before them, at least one [3]")
      ->type_name("N")
      ->default_val(3)
      ->check(CLI::Range(1, kMostSteps));
  app.add_option("--seconds", to.seconds, "measure no longer than this, and at least one step")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  app.add_option("--commit", to.commit, "what is measured, for the result")->type_name("ID");
  app.add_option("--json", to.json, "write all numbers there; -: standard output")
      ->type_name("FILE");
  app.add_option("--profile", to.profile,
                 "then record two steps more: the GPU's time kernel by kernel in a table and under "
                 "--json, and a trace for Perfetto there")
      ->type_name("FILE");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<StepBenchOptions>();
  return std::optional<StepBenchOptions>(std::move(to));
}

}  // namespace sluice::bench
