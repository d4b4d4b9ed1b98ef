#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/log.h"
#include "aio/result.h"
#include "aio/small_file.h"
#include "aio/terminal_line.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/model/torch_types.h"
#include "engine/observe/text_table.h"
#include "engine/plan/report/plan_report.h"
#include "engine/preflight/leftovers.h"
#include "engine/preflight/preflight.h"
#include "offload/element_types.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/profile_report.h"
#include "tools/measure/gpu_profile.h"
#include "tools/measure/gpu_recorder.h"
#include "tools/measure/phase_ranges.h"
#include "tools/measure/quantile.h"
#include "tools/measure/recording.h"
#include "tools/measure/step_measure.h"
#include "tools/measure/synthetic_run.h"
#include "tools/session/config_options.h"
#include "tools/session/flops_report.h"
#include "tools/session/open_queue.h"
#include "tools/session/plan_here.h"
#include "tools/session/run_setup.h"
#include "tools/support/interrupt.h"
#include "tools/support/output_file.h"

namespace sluice::tools {
namespace {

// A call made while a range was open belongs to that range's phase.
void give_phases(std::vector<GpuEvent> ranges, std::vector<GpuEvent>& calls) {
  const auto begins_before = [](std::int64_t at_ns, const GpuEvent& it) {
    return at_ns < it.begin_ns;
  };
  std::sort(ranges.begin(), ranges.end(),
            [](const GpuEvent& a, const GpuEvent& b) { return a.begin_ns < b.begin_ns; });
  for (GpuEvent& call : calls) {
    const auto next = std::upper_bound(ranges.begin(), ranges.end(), call.begin_ns, begins_before);
    if (next != ranges.begin() && call.begin_ns < std::prev(next)->end_ns)
      call.phase = std::prev(next)->phase;
  }
}

// Runs `work` and returns the LibTorch operators that its thread called, with their phase where
// PhaseRanges (phase_ranges.h) are open. Recording costs about a microsecond per call.
// `trace_file`: path of a trace for Perfetto; empty: none. Exceptions of `work` are passed on.
// Errors: kIo.
Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file) {
  namespace profiler = torch::autograd::profiler;
  Recording recording({profiler::ActivityType::CPU});
  work();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events;
  std::vector<GpuEvent> ranges;  // not nested
  for (const profiler::KinetoEvent& event : recorded->events()) {
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    GpuEvent call{.name = event.name(),
                  .begin_ns = static_cast<std::int64_t>(event.startNs()),
                  .end_ns = static_cast<std::int64_t>(event.endNs()),
                  .phase = phase_of_range(event.name())};
    (call.phase ? ranges : events).push_back(std::move(call));
  }
  give_phases(std::move(ranges), events);
  SLUICE_RETURN_IF_ERROR(save_trace(*recorded, trace_file));
  return events;
}

// Floating-point operations per second with LibTorch's current number of threads; the best of
// several products in about half a second.
double measure_cpu_products(offload::ElementType type) {
  constexpr std::int64_t kSize = 1024;
  constexpr std::int64_t kMeasuredNs = 500'000'000;
  constexpr double kOperations = 2.0 * kSize * kSize * kSize;
  const at::NoGradGuard no_tape;
  const SteadyClock clock;
  const auto options = at::TensorOptions().dtype(engine::scalar_type(type));
  const at::Tensor a = at::randn({kSize, kSize}, at::kFloat).to(options);
  const at::Tensor b = at::randn({kSize, kSize}, at::kFloat).to(options);
  at::Tensor product = at::empty({kSize, kSize}, options);
  at::mm_out(product, a, b);  // warms up
  double best = 0;
  const std::int64_t begin_ns = clock.now_ns();
  for (std::int64_t now_ns = begin_ns; now_ns - begin_ns < kMeasuredNs;) {
    const std::int64_t from_ns = now_ns;
    at::mm_out(product, a, b);
    now_ns = clock.now_ns();
    best = std::max(
        best, kOperations * 1e9 / static_cast<double>(std::max<std::int64_t>(now_ns - from_ns, 1)));
  }
  return best;
}

constexpr int kRecordedSteps = 2;
constexpr const char* kInterruptNotice =
    "\nfinishing the step; interrupt again to stop immediately\n";

struct ProfileOptions {
  ConfigOptions config;
  int steps = 5;
  int warmup = 2;
  std::string out;
  std::string trace;
  bool units = false;
  bool json = false;
  bool force = false;
};

Status check_files(const ProfileOptions& options) {
  if (!options.out.empty() && options.out == options.trace)
    return Error(ErrorCode::kInvalidArgument, "--out and --trace name one file: " + options.out);
  for (const auto& [option, path] : {std::pair("--out", options.out), {"--trace", options.trace}})
    SLUICE_RETURN_IF_ERROR(check_output_file(
        {.option = option, .path = path, .replaces = options.force, .made_folder = {}}));
  return {};
}

class Profiling {
 public:
  Profiling(const ProfileOptions& options, config::Config config, aio::IoWatchdog& watchdog)
      : options_(options), config_(std::move(config)), watchdog_(watchdog) {
    config_.flops_profiler.enabled = false;  // this command is a profiler itself
  }

  Result<int> run() {
    SLUICE_RETURN_IF_ERROR(engine::clear_leftovers(config_));
    // Plan before the run allocates its memory, which the plan would count as used.
    SLUICE_ASSIGN_OR_RETURN(const engine::RunPlan plan,
                            plan_here(config_, {.machine = {}, .with_what_ifs = true}));
    if (!plan.placement.fits) {
      std::cerr << engine::memory_table(plan);
      return Error(ErrorCode::kOutOfMemory, engine::does_not_fit(config_, plan));
    }
    report_.plan = &plan;
    // From here on an interrupt has to end the work in order; planning simply ends.
    const Interrupt& interrupt = interrupt_.emplace(kInterruptNotice);
    SLUICE_ASSIGN_OR_RETURN(const SyntheticTokens tokens, use_synthetic_tokens(config_));
    const auto made =
        set_up_run(config_, std::nullopt, {.stop = [&interrupt] { return interrupt.requested(); }});
    if (!made.ok() && made.error().code() == ErrorCode::kCancelled && interrupt.requested())
      return interrupted();
    if (!made.ok()) return made.error();
    return at_work(profile(**made));
  }

 private:
  static int interrupted() {
    std::cerr << "interrupted before a step was measured\n";
    return kInterruptedExitCode;
  }

  Result<int> profile(engine::TrainingRun& run) {
    measure(run);
    if (report_.profile.passes.steps() == 0) return interrupted();
    if (!report_.interrupted) SLUICE_RETURN_IF_ERROR(record(run));
    SLUICE_RETURN_IF_ERROR(tell());
    return report_.interrupted ? kInterruptedExitCode : 0;
  }

  double limit(engine::TrainingRun& run) const {
    const double of_gpu = report_.plan->machine.speeds.gpu_matmul_flops_per_s;
    return run.plan().cuda ? of_gpu : measure_cpu_products(run.plan().types.compute());
  }

  void measure(engine::TrainingRun& run) {
    TerminalLine line;
    engine::PassTotals passes(run.model().units());
    run.trainer().measure_phases(true);
    const StepMeasurement measured =
        measure_steps(run, {.warmup = options_.warmup, .steps = options_.steps}, *interrupt_,
                      [&](std::string_view phase, int done, int total, double seconds) {
                        line.show(std::string(phase) + " " + std::to_string(done) + " of " +
                                  std::to_string(total) + ": " + engine::duration(seconds));
                        if (phase == "step") passes.add_step(run.trainer().pass_spans());
                      });
    line.clear();
    run.trainer().measure_phases(false);
    report_.interrupted = measured.interrupted;
    report_.tokens_per_step = run.tokens_per_step();
    report_.moved = measured.moved;
    report_.moved_steps = measured.moved_steps;
    report_.profile = flops_profile_of(run, /*ranks=*/1, std::move(passes), limit(run));
    report_.device = run.plan().cuda ? report_.plan->machine.gpu
                                     : report_.plan->machine.cpu + ", " +
                                           std::to_string(engine::compute_threads(config_)) +
                                           " of them computing";
    take_times(measured.steps);
  }

  void take_times(const std::vector<MeasuredStep>& steps) {
    std::vector<double> seconds;
    engine::FlopsProfile& profile = report_.profile;
    for (const MeasuredStep& step : steps) {
      const auto share = [&](double value) { return value / static_cast<double>(steps.size()); };
      seconds.push_back(step.seconds);
      profile.step_s += share(step.seconds);
      profile.update_s += share(static_cast<double>(step.times.update_ns) * 1e-9);
      profile.update_exposed_s += share(static_cast<double>(step.times.update_exposed_ns) * 1e-9);
    }
    if (!seconds.empty()) report_.median_step_s = quantile(seconds, 0.5);
  }

  Status record(engine::TrainingRun& run) {
    const auto steps = [&] {
      const SteadyClock clock;
      const std::int64_t begin_ns = clock.now_ns();
      for (int step = 0; step < kRecordedSteps; ++step) static_cast<void>(run.step());
      run.trainer().drain();
      report_.recorded_s = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
    };
    report_.recorded_steps = kRecordedSteps;
    const PhaseRanges ranges(run.trainer());
    if (!run.plan().cuda) {
      SLUICE_ASSIGN_OR_RETURN(const auto calls, record_operators(steps, options_.trace));
      report_.operators = self_times(calls);
      report_.by_phase = operators_by_phase(calls);
      return {};
    }
    auto events = record_gpu(steps, {.trace_file = options_.trace, .by_phase = true});
    if (events.ok()) {
      report_.kernels = profile_of(*events, kRecordedSteps);
      report_.by_phase = kernels_by_phase(*events);
      return {};
    }
    if (!options_.trace.empty()) return std::move(events).error();
    log::warning(events.error().message());  // the rest is still worth showing
    return {};
  }

  Status tell() const {
    const std::string text = options_.json ? report_.json() + "\n" : report_.text(options_.units);
    if (options_.out.empty()) {
      std::cout << text << std::flush;
    } else {
      SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog_));
      SLUICE_RETURN_IF_ERROR(aio::write_small_file(*files.queue, options_.out, text));
      std::cout << "profile: " << options_.out << "\n";
    }
    if (!options_.trace.empty() && !report_.interrupted)
      std::cerr << "trace: " << options_.trace << " (open it in ui.perfetto.dev)\n";
    return {};
  }

  const ProfileOptions& options_;
  config::Config config_;
  aio::IoWatchdog& watchdog_;
  std::optional<Interrupt> interrupt_;
  ProfileReport report_;
};

Result<int> run(const ProfileOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_files(options));
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved, resolve(options.config));
  watchdog.set_limit_s(resolved.config.run.io_watchdog_s);
  // Without a GPU, its recorder would print a useless note on standard error.
  if (!engine::uses_cuda(resolved.config))
    setenv("KINETO_LOG_LEVEL", "99", 0);  // NOLINT(concurrency-mt-unsafe): at the start
  return Profiling(options, std::move(resolved.config), watchdog).run();
}

}  // namespace

Command add_profile_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "profile", "Measure where a step's time goes: phases, units, kernels, and what would help");
  command->footer(
      "  sluice profile configs/gpt2_xl_24gb.json --steps 10\n  sluice profile configs/demo.json "
      "--json -o profile.json --trace kernels.json\nTrains on random tokens, like sluice train; "
      "nothing is saved, and no corpus is needed.\nPhases and units are timed on the device that "
      "computes. Then two more steps are recorded,\nby kernel on a GPU or by operator on the CPU, "
      "in total and for each phase. Speeds are\ncompared with the measured speed of large matrix "
      "products. Operations are those of matrix\nproducts, without masked attention. Ctrl-C "
      "reports what was measured until then, and exits\nwith 130.");
  const auto options = std::make_shared<ProfileOptions>();
  constexpr int kMostSteps = 1'000'000;
  add_config_options(*command, options->config);
  command->add_option("--steps", options->steps, "Measured [5]")
      ->type_name("N")
      ->check(CLI::Range(1, kMostSteps));
  command->add_option("--warmup", options->warmup, "Warm-up steps before them [2]")
      ->type_name("N")
      ->check(CLI::Range(1, kMostSteps));
  command->add_flag("--units", options->units, "One row per unit, instead of per kind of unit");
  command->add_flag("--json", options->json, "Prints one JSON object, with every unit and kernel");
  command->add_option("-o,--out", options->out, "Writes the profile to this file")
      ->check(not_empty());
  command
      ->add_option(
          "--trace", options->trace,
          "Writes a trace of the recorded steps, with every kernel or operator, to this file")
      ->check(not_empty());
  command->add_flag("--force", options->force, "Replaces the files of --out and --trace");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
