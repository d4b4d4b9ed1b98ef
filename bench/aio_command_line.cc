#include "bench/aio_command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr const char* kDescription =
    "Measures how fast a drive moves data between a file and pinned memory: GB/s, IOPS,\n"
    "latency and CPU time, by the same IO layer that training uses.\n"
    "\n"
    "It writes a scratch file without a name, which is gone when the program ends, however\n"
    "it ends. K, M, G, T in sizes are powers of 1024; GB/s is 10^9 bytes a second.";

constexpr const char* kExamples =
    "Examples:\n"
    "  aio_bench --path /nvme --size 8G\n"
    "      sequential reads: three runs of 5 s, 1M blocks, 32 in flight\n"
    "  aio_bench --path /nvme0 --path /nvme1 --weights auto --mode all --json out.json\n"
    "      a file striped over two drives: reads, writes, then both at once\n"
    "  aio_bench --path /nvme --mode randread --block-size 4K --threads 4\n"
    "      IOPS of small random reads on four rings\n"
    "  aio_bench --path /nvme --sweep --out aio.json\n"
    "      finds the best block size, depth and threads, and writes an \"aio\" section that a\n"
    "      training configuration can include\n"
    "\n"
    "Exit codes: 0 done; 1 an IO error or wrong data; 2 a mistake in the options; 130 Ctrl-C.";

void add_options(CLI::App& app, AioArguments& to) {
  // Every value is parsed as text, since parse_options() gives better errors than CLI11.
  const auto add = [&app](const char* group, const char* name, std::optional<std::string>& value,
                          const char* kind, const char* help) {
    app.add_option(name, value, help)->group(group)->type_name(kind)->allow_extra_args(false);
  };
  const auto add_flag = [&app](const char* group, const char* name, bool& value, const char* help) {
    app.add_flag(name, value, help)->group(group)->disable_flag_override();
  };
  constexpr const char* kWhere = "Where";
  app.add_option("--path", to.paths, "folder for the scratch file; several: striped [.]")
      ->group(kWhere)
      ->type_name("DIR")
      ->allow_extra_args(false);
  add(kWhere, "--size", to.size, "BYTES", "of the file [4G; with --file: all of it]");
  add(kWhere, "--file", to.file, "FILE", "measure on this existing file; reads never change it");
  add_flag(kWhere, "--overwrite", to.overwrite, "let writes destroy the data in --file");
  add(kWhere, "--stripe-size", to.stripe_size, "BYTES", "with several --path [1M]");
  add(kWhere, "--weights", to.weights, "W:W|auto", "share of each --path; auto: measured [equal]");

  constexpr const char* kWhat = "What";
  add(kWhat, "--mode", to.mode, "MODE",
      "read, write, mixed, randread, or all: read, write, mixed [read]");
  add(kWhat, "--block-size", to.block_size, "BYTES", "of one request, a multiple of 4096 [1M]");
  add(kWhat, "--queue-depth", to.queue_depth, "N", "requests in flight of each thread [32]");
  add(kWhat, "--threads", to.threads, "N", "io_uring rings; posix: N x depth threads [1]");
  add(kWhat, "--backend", to.backend, "NAME", "uring, posix, or auto: uring if it works [auto]");
  add_flag(kWhat, "--single-submit", to.single_submit, "one system call a request, no batches");
  add_flag(kWhat, "--verify", to.verify,
           "write a pattern and check every byte read; slower than without");

  constexpr const char* kHow = "How long";
  add(kHow, "--seconds", to.seconds, "S", "of one run [5; sweep: 1]");
  add(kHow, "--ramp", to.ramp, "S", "of running before it counts [0.25 or 5% of --seconds]");
  add(kHow, "--runs", to.runs, "N", "of each mode, the median is shown [3; sweep: 2]");
  add(kHow, "--seed", to.seed, "N", "of offsets and data [1]");

  constexpr const char* kResult = "Results";
  add(kResult, "--json", to.json, "FILE", "results for programs; - is standard output");
  add_flag(kResult, "--sweep", to.sweep,
           "try block sizes, depths and threads (those not given) in --mode [mixed]");
  add(kResult, "--out", to.out, "FILE",
      "with --sweep: the best as \"aio\" section [aio_sweep.json]");
}

}  // namespace

Result<std::optional<AioOptions>> parse_command_line(int argc, const char* const* argv) {
  AioArguments arguments;
  CLI::App app(kDescription, "aio_bench");
  app.footer(kExamples);
  add_options(app, arguments);
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<AioOptions>();
  SLUICE_ASSIGN_OR_RETURN(AioOptions options, parse_options(arguments));
  return std::optional<AioOptions>(std::move(options));
}

}  // namespace sluice::bench
