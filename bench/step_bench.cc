// step_bench: measures whole training steps of a configuration. See --help.
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "aio/clock.h"
#include "aio/machine_info.h"
#include "aio/terminal_line.h"
#include "bench/gpu_recorder.h"
#include "bench/result_file.h"
#include "bench/result_header.h"
#include "bench/step_options.h"
#include "bench/step_report.h"
#include "engine/model/gpt_layout.h"
#include "engine/observe/text_table.h"
#include "engine/train/memory_plan.h"
#include "engine/train/training_run.h"
#include "tools/cli/run_setup.h"
#include "tools/measure/step_measure.h"
#include "tools/measure/synthetic_run.h"
#include "tools/measure/synthetic_tokens.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;
constexpr int kOutOfMemory = 3;
constexpr int kRecordedSteps = 2;
constexpr const char* kInterruptNotice = "\nfinishing the step; once more stops at once\n";

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kMemlockLimit:
      return kOutOfMemory;
    case ErrorCode::kIo:
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      return kOurError;
    default:
      return kUserError;
  }
}

std::uint64_t parameters_of(const engine::GptShape& shape) {
  std::uint64_t parameters = 0;
  for (const engine::UnitLayout& layout : engine::gpt_layouts(shape))
    parameters += layout.parameter_elements();
  return parameters;
}

class Program {
 public:
  Program(StepBenchOptions options, std::string command)
      : command_(std::move(command)), table_(options.json == "-" ? stderr : stdout) {
    report_.options = std::move(options);
  }

  int run() {
    if (!options().json.empty())
      if (const Status usable = json_file().check(); !usable.ok())
        return fail(usable.error(), kUserError);
    const auto resolved = tools::resolve(options().config);
    if (!resolved.ok()) return fail(resolved.error(), kUserError);
    report_.config = resolved->config;
    if (const Status can = check_profile(); !can.ok()) return fail(can.error(), kUserError);
    std::fputs(machine_line("step_bench", machine_).c_str(), table_);
    std::fflush(table_);
    try {
      return measure();
    } catch (const c10::OutOfMemoryError& error) {
      return tell_out_of_memory(error.what_without_backtrace());
    } catch (const std::bad_alloc&) {
      return tell_out_of_memory("the host has no memory left");
    }
  }

 private:
  const StepBenchOptions& options() const { return report_.options; }
  ResultFile json_file() const {
    return ResultFile("--json", options().json, ResultFile::Kind::kMeasurement);
  }

  Status check_profile() const {
    if (options().profile.empty()) return {};
    if (!engine::uses_cuda(report_.config)) {
      return Error(ErrorCode::kInvalidArgument,
                   "--profile records what a GPU does, and this run computes on the CPU: leave it "
                   "out, or see run.device");
    }
    return check_trace_file(options().profile);
  }

  int measure() {
    report_.before = tools::memory_use(engine::uses_cuda(report_.config));
    auto made = set_up();
    if (!made.ok()) {
      const int code = exit_code_of(made.error().code());
      return code == kOutOfMemory ? tell_out_of_memory(made.error().message())
                                  : fail(made.error(), code);
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
    if (const Status recorded = record(*run); !recorded.ok())
      return fail(recorded.error(), exit_code_of(recorded.error().code()));
    return tell();
  }

  Status record(engine::TrainingRun& run) {
    if (options().profile.empty() || report_.measured.interrupted) return {};
    const auto steps = [&] {
      for (int step = 0; step < kRecordedSteps; ++step) static_cast<void>(run.step());
      run.trainer().drain();
    };
    SLUICE_ASSIGN_OR_RETURN(const std::vector<GpuEvent> events,
                            record_gpu(steps, options().profile));
    report_.profile = profile_of(events, kRecordedSteps);
    return {};
  }

  Result<std::unique_ptr<engine::TrainingRun>> set_up() {
    const SteadyClock clock;
    const engine::GptShape shape = engine::gpt_shape(report_.config.model);
    SLUICE_RETURN_IF_ERROR(engine::validate(shape));
    report_.parameters = parameters_of(shape);
    SLUICE_ASSIGN_OR_RETURN(const tools::SyntheticTokens tokens,
                            tools::use_synthetic_tokens(report_.config));
    const std::int64_t begin_ns = clock.now_ns();
    SLUICE_ASSIGN_OR_RETURN(auto run, tools::set_up_run(report_.config, std::nullopt));
    report_.setup_seconds = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
    report_.tokens_per_step = run->tokens_per_step();
    report_.planned_gpu_bytes = run->plan().gpu_bytes();
    report_.predicted_step_s = run->plan().predicted_step_s;
    report_.planned_host_bytes = run->plan().host_bytes();
    report_.planned_nvme_bytes = run->plan().nvme_bytes();
    return run;
  }

  int tell() {
    if (report_.measured.steps.empty()) {
      std::fputs("step_bench: interrupted before a step was measured\n", stderr);
      return tools::kInterruptedExitCode;
    }
    std::fputs(report_.table().c_str(), table_);
    if (const Status written = write_json(); !written.ok()) return fail(written.error(), kOurError);
    if (!report_.measured.interrupted) return 0;
    std::fputs("interrupted: the results above are not complete\n", table_);
    return tools::kInterruptedExitCode;
  }

  int tell_out_of_memory(const std::string& why) {
    report_.out_of_memory = why;
    std::fprintf(stderr, "step_bench: out of memory: %s\n", why.c_str());
    const Status written = write_json();
    return written.ok() ? kOutOfMemory : fail(written.error(), kOurError);
  }

  Status write_json() const {
    if (options().json.empty()) return {};
    return json_file().write(report_.json(machine_, command_));
  }

  static int fail(const Error& error, int code) {
    std::fprintf(stderr, "step_bench: %s\n", error.message().c_str());
    return code;
  }

  const tools::Interrupt interrupt_{kInterruptNotice};
  const std::string command_;
  std::FILE* const table_;
  const aio::MachineInfo machine_ = aio::machine_info();
  StepReport report_;
};

int run(int argc, const char* const* argv) {
  auto options = parse_step_command_line(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "step_bench: %s\n", options.error().message().c_str());
    return kUserError;
  }
  if (!options->has_value()) return 0;
  return Program(std::move(**options), tools::command_text("step_bench", argc, argv)).run();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
}
