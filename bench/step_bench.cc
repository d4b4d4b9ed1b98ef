// step_bench: measures whole training steps of a configuration. See --help.
#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "aio/clock.h"
#include "aio/terminal_line.h"
#include "bench/bench_program.h"
#include "bench/result_file.h"
#include "bench/step_options.h"
#include "bench/step_report.h"
#include "engine/budget/memory_plan.h"
#include "engine/device/gpu.h"
#include "engine/families/families.h"
#include "engine/observe/text_table.h"
#include "engine/run/training_run.h"
#include "tools/measure/gpu_recorder.h"
#include "tools/measure/step_measure.h"
#include "tools/measure/synthetic_run.h"
#include "tools/measure/synthetic_tokens.h"
#include "tools/session/run_setup.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {
namespace {

constexpr int kOutOfMemory = 3;
constexpr int kRecordedSteps = 2;
constexpr const char* kInterruptNotice =
    "\nfinishing the step; interrupt again to stop immediately\n";

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOutOfMemory:
      return kOutOfMemory;
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      return kOurError;
    default:
      return kUserError;
  }
}

class Program {
 public:
  Program(StepBenchOptions options, const BenchCommand& command) : bench_(command, options.json) {
    report_.options = std::move(options);
  }

  int run() {
    if (const Status usable = bench_.check_json(); !usable.ok())
      return bench_.fail(usable.error(), kUserError);
    const auto resolved = tools::resolve(options().config);
    if (!resolved.ok()) return bench_.fail(resolved.error(), kUserError);
    report_.config = resolved->config;
    if (const Status can = check_profile(); !can.ok()) return bench_.fail(can.error(), kUserError);
    bench_.show_machine();
    try {
      return measure();
    } catch (const c10::OutOfMemoryError& error) {
      return tell_out_of_memory(error.what_without_backtrace());
    } catch (const std::bad_alloc&) {
      return tell_out_of_memory("the host is out of memory");
    }
  }

 private:
  const StepBenchOptions& options() const { return report_.options; }

  Status check_profile() const {
    if (options().profile.empty()) return {};
    if (!engine::uses_cuda(report_.config)) {
      return Error(ErrorCode::kInvalidArgument,
                   "--profile records a GPU, but this run computes on the CPU: leave it out, or "
                   "see run.device");
    }
    return check_trace_file(options().profile);
  }

  int measure() {
    report_.before = tools::memory_use(engine::uses_cuda(report_.config));
    auto made = set_up();
    if (!made.ok()) {
      const int code = exit_code_of(made.error().code());
      return code == kOutOfMemory ? tell_out_of_memory(made.error().message())
                                  : bench_.fail(made.error(), code);
    }
    const std::unique_ptr<engine::TrainingRun> run = *std::move(made);
    TerminalLine line;
    report_.measured = tools::measure_steps(
        *run, {.warmup = options().warmup, .steps = options().steps, .seconds = options().seconds},
        interrupt_, [&](std::string_view phase, int done, int total, double seconds) {
          line.show(std::string(phase) + " " + std::to_string(done) + " of " +
                    std::to_string(total) + ": " + engine::duration(seconds));
        });
    line.clear();
    const int recorded = try_to_record(*run);
    const int told = tell();
    return told != 0 ? told : recorded;
  }

  // Earlier measurements are reported, whatever the outcome.
  int try_to_record(engine::TrainingRun& run) {
    if (options().profile.empty() || report_.measured.interrupted) return 0;
    try {
      const Status recorded = record(run);
      return recorded.ok() ? 0 : bench_.fail(recorded.error(), kOurError);
    } catch (const std::exception& error) {
      return bench_.fail(
          Error(ErrorCode::kInternal, std::string("the steps could not be recorded: ") +
                                          error.what() + "; leave --profile out"),
          kOurError);
    }
  }

  Status record(engine::TrainingRun& run) {
    const auto steps = [&] {
      for (int step = 0; step < kRecordedSteps; ++step) static_cast<void>(run.step());
      run.trainer().drain();
    };
    SLUICE_ASSIGN_OR_RETURN(const std::vector<tools::GpuEvent> events,
                            tools::record_gpu(steps, {.trace_file = options().profile}));
    report_.profile = tools::profile_of(events, kRecordedSteps);
    return {};
  }

  Result<std::unique_ptr<engine::TrainingRun>> set_up() {
    const SteadyClock clock;
    const engine::ModelShape shape = report_.config.model.shape();
    SLUICE_RETURN_IF_ERROR(engine::validate(shape));
    const engine::ModelLayout model = engine::model_layout({.shape = shape});
    report_.parameters = model.parameter_elements();
    if (!model.has_borrowers(0)) report_.untied_embedding = model.layout(0).parameter_elements();
    SLUICE_ASSIGN_OR_RETURN(const tools::SyntheticTokens tokens,
                            tools::use_synthetic_tokens(report_.config));
    const std::int64_t begin_ns = clock.now_ns();
    SLUICE_ASSIGN_OR_RETURN(const tools::PlannedRun planned,
                            tools::plan_training(report_.config, std::nullopt));
    SLUICE_ASSIGN_OR_RETURN(tools::MadeRun made, tools::make_run(report_.config, planned));
    SLUICE_ASSIGN_OR_RETURN(auto run, tools::give_state(std::move(made), std::nullopt));
    report_.setup_seconds = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
    report_.tokens_per_step = run->tokens_per_step();
    report_.planned_gpu_bytes = run->plan().gpu_bytes();
    if (const auto& step = planned.step) {
      report_.predicted_step_s = step->step_s;
      report_.gpu = step->machine.gpu;
      report_.gpu_product_flops_per_s = step->machine.speeds.gpu_matmul_flops_per_s;
    }
    report_.planned_host_bytes = run->plan().host_bytes();
    report_.planned_nvme_bytes = run->plan().nvme_bytes();
    report_.waves = run->plan().waves;
    return run;
  }

  int tell() {
    if (report_.measured.steps.empty())
      return bench_.fail(Error(ErrorCode::kCancelled, "interrupted before a step was measured"),
                         tools::kInterruptedExitCode);
    bench_.show(report_.table());
    return bench_.finish(json(), report_.measured.interrupted);
  }

  int tell_out_of_memory(const std::string& why) {
    report_.out_of_memory = why;
    bench_.fail(Error(ErrorCode::kOutOfMemory, "out of memory: " + why), kOutOfMemory);
    const int written = bench_.finish(json());
    return written == 0 ? kOutOfMemory : written;
  }

  std::function<std::string()> json() const {
    return [this] { return report_.json(bench_.machine(), bench_.command()); };
  }

  const tools::Interrupt interrupt_{kInterruptNotice};
  BenchProgram bench_;
  StepReport report_;
};

int run(StepBenchOptions options, const BenchCommand& command) {
  return Program(std::move(options), command).run();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("step_bench", argc, argv, sluice::bench::parse_step_command_line,
                                   sluice::bench::run);
}
