// model_bench: times the passes of a GPT-2's units on one device. See --help.
#include <cstdio>
#include <exception>
#include <string>

#include "aio/machine_info.h"
#include "bench/model_options.h"
#include "bench/model_report.h"
#include "bench/model_workload.h"
#include "bench/result_file.h"
#include "bench/result_header.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;

int fail(const Error& error, int code) {
  std::fprintf(stderr, "model_bench: %s\n", error.message().c_str());
  return code;
}

int run(int argc, const char* const* argv) {
  const auto arguments = parse_model_command_line(argc, argv);
  if (!arguments.ok()) return fail(arguments.error(), kUserError);
  if (!arguments->has_value()) return 0;
  const auto options = parse_model_options(**arguments);
  if (!options.ok()) return fail(options.error(), kUserError);
  if (const Status device = check_device(*options); !device.ok())
    return fail(device.error(), kUserError);
  const ResultFile file("--json", options->json, ResultFile::Kind::kMeasurement);
  if (!options->json.empty())
    if (const Status usable = file.check(); !usable.ok()) return fail(usable.error(), kUserError);

  std::FILE* const table = options->json == "-" ? stderr : stdout;
  const aio::MachineInfo machine = aio::machine_info();
  std::fputs(machine_line("model_bench", machine).c_str(), table);
  std::fflush(table);
  const ModelReport report{*options, measure_passes(*options)};
  std::fputs(report.table().c_str(), table);
  if (options->json.empty()) return 0;
  const Status written =
      file.write(report.json(machine, tools::command_text("model_bench", argc, argv)));
  return written.ok() ? 0 : fail(written.error(), kOurError);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_bench: %s\n", error.what());
    return 1;
  }
}
