// model_bench: times the passes of a model's units on one device. See --help.
#include "bench/bench_program.h"
#include "bench/model_options.h"
#include "bench/model_workload.h"

namespace sluice::bench {
namespace {

int run(const ModelBenchOptions& options, const BenchCommand& command) {
  BenchProgram bench(command, options.json);
  if (const Status device = check_device(options); !device.ok())
    return bench.fail(device.error(), kUserError);
  if (const Status usable = bench.check_json(); !usable.ok())
    return bench.fail(usable.error(), kUserError);
  bench.show_machine();
  const ModelReport report{options, measure_passes(options)};
  bench.show(report.table());
  return bench.finish([&] { return report.json(bench.machine(), bench.command()); });
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("model_bench", argc, argv,
                                   sluice::bench::parse_model_command_line, sluice::bench::run);
}
