// adam_bench: measures the CPU AdamW kernels, or the gradient's cast, against what the machine's
// memory can do. See --help.
#include <memory>
#include <vector>

#include "aio/executor.h"
#include "bench/adam_measure.h"
#include "bench/adam_options.h"
#include "bench/adam_report.h"
#include "bench/adam_workload.h"
#include "bench/bench_program.h"
#include "bench/cast_workload.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

Result<std::vector<AdamRun>> measure(const AdamBenchOptions& options, KernelWorkload& workload,
                                     aio::Executor& executor, tools::ProgressLine& progress) {
  const tools::Interrupt interrupt;
  return measure_kernel(options, workload, executor, interrupt, progress);
}

int run(const AdamBenchOptions& options, const BenchCommand& command) {
  BenchProgram bench(command, options.json);
  if (const Status usable = bench.check_json(); !usable.ok())
    return bench.fail(usable.error(), kUserError);
  bench.show_machine();

  const auto executor = aio::make_executor(options.threads);
  if (!executor.ok()) return bench.fail(executor.error(), kUserError);
  const auto workload = options.kernel == BenchKernel::kAdamw
                            ? AdamWorkload::create(options, **executor)
                            : CastWorkload::create(options, **executor);
  if (!workload.ok()) return bench.fail(workload.error(), kUserError);
  const auto runs = measure(options, **workload, **executor, bench.progress());
  if (!runs.ok())
    return bench.fail(runs.error(), runs.error().code() == ErrorCode::kCancelled
                                        ? tools::kInterruptedExitCode
                                        : kUserError);

  const AdamReport report{options, *runs, (*workload)->page_kind()};
  bench.show(report.table());
  return bench.finish([&] { return report.json(bench.machine(), bench.command()); });
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("adam_bench", argc, argv, sluice::bench::parse_adam_command_line,
                                   sluice::bench::run);
}
