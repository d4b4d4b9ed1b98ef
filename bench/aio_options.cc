#include "bench/aio_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "aio/io_queue.h"
#include "aio/machine_info.h"
#include "aio/striped_file.h"
#include "aio/units.h"
#include "aio/uring_backend.h"
#include "bench/option_values.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kSectorBytes = 4096;
constexpr double kLongestSeconds = 86400;

Result<double> duration(const std::string& option, const std::string& text, bool zero_allowed) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool too_small = zero_allowed ? value < 0 : value <= 0;
  if (text.empty() || error != std::errc() || stop != end || !std::isfinite(value) || too_small ||
      value > kLongestSeconds)
    return wrong(option, text,
                 std::string("give seconds, a number ") +
                     (zero_allowed ? "from 0 to 86400" : "above 0 and up to 86400"));
  return value;
}

Result<std::uint64_t> byte_count(const std::string& option, const std::string& text) {
  auto bytes = parse_bytes(text);
  if (!bytes.ok())
    return wrong(option, text, "give a size such as 4096, 256K, 1M or 4G (powers of 1024)");
  return *bytes;
}

Result<std::uint64_t> sectors(const std::string& option, const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t bytes, byte_count(option, text));
  if (bytes < kSectorBytes || bytes > kGiB || bytes % kSectorBytes != 0)
    return wrong(option, text,
                 "give a multiple of 4096 from 4K to 1G, because direct IO moves whole 4 KiB "
                 "sectors");
  return bytes;
}

Result<std::vector<Mode>> modes_of(const std::string& text) {
  if (text == "all") return std::vector<Mode>{Mode::kRead, Mode::kWrite, Mode::kMixed};
  if (const auto mode = parse_mode(text)) return std::vector<Mode>{*mode};
  return wrong("--mode", text, "choose read, write, mixed, randread or all");
}

Result<std::vector<int>> weights_of(const std::string& text, std::size_t paths) {
  std::vector<int> weights;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const auto weight =
        small_number("--weights", text.substr(begin, end - begin), 1, aio::StripedFile::kMaxWeight);
    if (!weight.ok()) {
      weights.clear();
      break;
    }
    weights.push_back(*weight);
    begin = end + 1;
  }
  if (weights.size() != paths)
    return wrong("--weights", text,
                 "give one whole number from 1 to " + std::to_string(aio::StripedFile::kMaxWeight) +
                     " for each --path, as in 2:1, or auto");
  return weights;
}

Status parse_places(const AioArguments& given, AioOptions& options) {
  if (given.file) {
    options.file = *given.file;
    if (!given.paths.empty())
      return wrong("--file", *given.file, "give --file or --path, not both");
    if (given.stripe_size || given.weights)
      return wrong("--file", *given.file, "--stripe-size and --weights go with several --path");
  } else {
    if (given.overwrite)
      return Error(ErrorCode::kInvalidArgument,
                   "--overwrite: goes with --file; a scratch file in --path is always written");
    options.paths = given.paths.empty() ? std::vector<std::string>{"."} : given.paths;
  }
  options.overwrite = given.overwrite;
  if (given.size) {
    SLUICE_ASSIGN_OR_RETURN(options.size_bytes, byte_count("--size", *given.size));
    if (options.size_bytes < kSectorBytes)
      return wrong("--size", *given.size, "give at least 4K, one sector");
  } else {
    options.size_bytes = given.file ? 0 : 4 * kGiB;
  }
  SLUICE_ASSIGN_OR_RETURN(options.stripe_bytes,
                          sectors("--stripe-size", given.stripe_size.value_or("1M")));
  if ((given.weights || given.stripe_size) && options.paths.size() < 2)
    return wrong(given.weights ? "--weights" : "--stripe-size",
                 given.weights ? *given.weights : *given.stripe_size,
                 "goes with several --path, over which the file is striped");
  options.auto_weights = given.weights == "auto";
  if (given.weights && !options.auto_weights) {
    SLUICE_ASSIGN_OR_RETURN(options.weights, weights_of(*given.weights, options.paths.size()));
  } else {
    options.weights.assign(options.paths.size(), 1);
  }
  return {};
}

Status parse_shape(const AioArguments& given, AioOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(options.block_bytes,
                          sectors("--block-size", given.block_size.value_or("1M")));
  SLUICE_ASSIGN_OR_RETURN(options.queue_depth,
                          small_number("--queue-depth", given.queue_depth.value_or("32"), 1,
                                       aio::UringBackend::kMaxQueueDepth));
  SLUICE_ASSIGN_OR_RETURN(options.threads, small_number("--threads", given.threads.value_or("1"), 1,
                                                        aio::UringBackend::kMaxThreads));
  const int in_flight = options.queue_depth * options.threads;
  if (in_flight > aio::IoQueue::kMaxQueueDepth)
    return wrong("--threads", std::to_string(options.threads),
                 "with --queue-depth " + std::to_string(options.queue_depth) + " that is " +
                     std::to_string(in_flight) + " blocks in flight, and " +
                     std::to_string(aio::IoQueue::kMaxQueueDepth) + " are the most");
  const std::uint64_t buffers = options.block_bytes * static_cast<std::uint64_t>(in_flight);
  const std::uint64_t available = aio::available_ram_bytes();
  if (available > 0 && buffers > available / 2)
    return wrong("--block-size", format_bytes(options.block_bytes),
                 std::to_string(in_flight) + " of these in flight need " + format_bytes(buffers) +
                     " of buffers, more than half of the " + format_bytes(available) +
                     " of memory that are available");
  auto backend = aio::parse_backend_kind(given.backend.value_or("auto"));
  if (!backend.ok())
    return wrong("--backend", *given.backend, "choose uring, posix or auto (uring if it works)");
  options.backend = *backend;
  options.single_submit = given.single_submit;
  return {};
}

Status parse_run(const AioArguments& given, AioOptions& options) {
  const char* default_seconds = options.sweep ? "1" : "5";
  SLUICE_ASSIGN_OR_RETURN(options.seconds,
                          duration("--seconds", given.seconds.value_or(default_seconds), false));
  options.ramp_seconds = std::max(0.25, 0.05 * options.seconds);
  if (given.ramp) {
    SLUICE_ASSIGN_OR_RETURN(options.ramp_seconds, duration("--ramp", *given.ramp, true));
  }
  const char* default_runs = options.sweep ? "2" : "3";
  SLUICE_ASSIGN_OR_RETURN(options.runs,
                          small_number("--runs", given.runs.value_or(default_runs), 1, 1000));
  SLUICE_ASSIGN_OR_RETURN(options.seed,
                          whole_number("--seed", given.seed.value_or("1"), 0, INT64_MAX));
  options.json = given.json == "/dev/stdout" ? "-" : given.json.value_or("");
  if (given.json && given.json->empty())
    return wrong("--json", "", "give a file name, or - for standard output");
  return {};
}

Status check_together(const AioArguments& given, const AioOptions& options) {
  if (options.sweep && options.modes.size() > 1)
    return wrong("--mode", *given.mode,
                 "--sweep tries one mode; choose read, write, mixed or "
                 "randread");
  if (options.sweep && options.verify)
    return Error(ErrorCode::kInvalidArgument,
                 "--verify: cannot be combined with --sweep, which only measures speed");
  if (given.out && !options.sweep)
    return wrong("--out", *given.out, "goes with --sweep; the result of a run goes to --json");
  if (given.out && given.out->empty()) return wrong("--out", "", "give a file name");
  if (!options.file.empty() && options.writes_to_file() && !options.overwrite) {
    const std::string what = options.verify ? "--verify" : "--mode " + given.mode.value_or("mixed");
    return wrong("--file", options.file,
                 what + " overwrites the data in it; to allow that, add --overwrite");
  }
  return {};
}

}  // namespace

bool AioOptions::writes_to_file() const {
  return verify || std::any_of(modes.begin(), modes.end(), writes);
}

Result<AioOptions> parse_options(const AioArguments& given) {
  AioOptions options;
  options.sweep = given.sweep;
  options.verify = given.verify;
  options.sweep_block = !given.block_size;
  options.sweep_depth = !given.queue_depth;
  options.sweep_threads = !given.threads;
  options.out = given.out.value_or(given.sweep ? "aio_sweep.json" : "");
  SLUICE_ASSIGN_OR_RETURN(options.modes,
                          modes_of(given.mode.value_or(given.sweep ? "mixed" : "read")));
  SLUICE_RETURN_IF_ERROR(parse_places(given, options));
  SLUICE_RETURN_IF_ERROR(parse_shape(given, options));
  SLUICE_RETURN_IF_ERROR(parse_run(given, options));
  SLUICE_RETURN_IF_ERROR(check_together(given, options));
  return options;
}

namespace {

constexpr const char* kDescription =
    "Measures how fast a drive moves data between a file and pinned memory: GB/s, IOPS,\nlatency "
    "and CPU time, by the same IO layer that training uses.\n\nIt writes an unnamed scratch file, "
    "which disappears when the program ends for any reason.\nK, M, G, T in sizes are powers of "
    "1024; GB/s is 10^9 bytes per second.";

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
  add(kWhere, "--size", to.size, "BYTES", "size of the file [4G; with --file: all of it]");
  add(kWhere, "--file", to.file, "FILE", "measure with this existing file; reads do not change it");
  add_flag(kWhere, "--overwrite", to.overwrite, "allow writes to destroy the data in --file");
  add(kWhere, "--stripe-size", to.stripe_size, "BYTES", "stripe size with several --path [1M]");
  add(kWhere, "--weights", to.weights, "W:W|auto", "share of each --path; auto: measured [equal]");

  constexpr const char* kWhat = "What";
  add(kWhat, "--mode", to.mode, "MODE",
      "read, write, mixed, randread, or all: read, write, mixed [read]");
  add(kWhat, "--block-size", to.block_size, "BYTES",
      "size of one request, a multiple of 4096 [1M]");
  add(kWhat, "--queue-depth", to.queue_depth, "N", "requests in flight per thread [32]");
  add(kWhat, "--threads", to.threads, "N", "io_uring rings; posix: N x depth threads [1]");
  add(kWhat, "--backend", to.backend, "NAME", "uring, posix, or auto: uring if it works [auto]");
  add_flag(kWhat, "--single-submit", to.single_submit, "one system call per request, no batches");
  add_flag(kWhat, "--verify", to.verify, "write a pattern and check every byte read; slower");

  constexpr const char* kHow = "How long";
  add(kHow, "--seconds", to.seconds, "S", "seconds per run [5; sweep: 1]");
  add(kHow, "--ramp", to.ramp, "S", "seconds before measuring starts [0.25 or 5% of --seconds]");
  add(kHow, "--runs", to.runs, "N",
      "runs of each mode, of which the median is shown [3; sweep: 2]");
  add(kHow, "--seed", to.seed, "N", "seed of offsets and data [1]");

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
