// adam_bench: measures the CPU AdamW kernels, or the gradient's cast, against what the machine's
// memory can do. See --help.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/executor.h"
#include "aio/machine_info.h"
#include "bench/adam_measure.h"
#include "bench/adam_options.h"
#include "bench/adam_report.h"
#include "bench/adam_workload.h"
#include "bench/cast_workload.h"
#include "bench/result_file.h"
#include "bench/result_header.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;

int fail(const Error& error, int code) {
  std::fprintf(stderr, "adam_bench: %s\n", error.message().c_str());
  return code;
}

Result<std::vector<AdamRun>> measure(const AdamBenchOptions& options, KernelWorkload& workload,
                                     aio::Executor& executor) {
  const tools::Interrupt interrupt;
  tools::ProgressLine progress;
  return measure_kernel(options, workload, executor, interrupt, progress);
}

int run(int argc, const char* const* argv) {
  const auto arguments = parse_adam_command_line(argc, argv);
  if (!arguments.ok()) return fail(arguments.error(), kUserError);
  if (!arguments->has_value()) return 0;
  const auto options = parse_adam_options(**arguments);
  if (!options.ok()) return fail(options.error(), kUserError);
  const ResultFile file("--json", options->json, ResultFile::Kind::kMeasurement);
  if (!options->json.empty())
    if (const Status usable = file.check(); !usable.ok()) return fail(usable.error(), kUserError);

  std::FILE* const table = options->json == "-" ? stderr : stdout;
  const aio::MachineInfo machine = aio::machine_info();
  std::fputs(machine_line("adam_bench", machine).c_str(), table);
  std::fflush(table);

  const auto executor = aio::make_executor(options->threads);
  if (!executor.ok()) return fail(executor.error(), kUserError);
  const auto workload = options->kernel == BenchKernel::kAdamw
                            ? AdamWorkload::create(*options, **executor)
                            : CastWorkload::create(*options, **executor);
  if (!workload.ok()) return fail(workload.error(), kUserError);
  const auto runs = measure(*options, **workload, **executor);
  if (!runs.ok())
    return fail(runs.error(), runs.error().code() == ErrorCode::kCancelled
                                  ? tools::kInterruptedExitCode
                                  : kUserError);

  const AdamReport report{*options, *runs, (*workload)->page_kind()};
  std::fputs(report.table().c_str(), table);
  if (options->json.empty()) return 0;
  const Status written =
      file.write(report.json(machine, tools::command_text("adam_bench", argc, argv)));
  return written.ok() ? 0 : fail(written.error(), kOurError);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adam_bench: %s\n", error.what());
    return 1;
  }
}
