#include "bench/aio_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "aio/io_queue.h"
#include "aio/machine_info.h"
#include "aio/striped_file.h"
#include "aio/units.h"
#include "aio/uring_backend.h"
#include "bench/option_values.h"

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
                 "--verify: cannot be combined with --sweep, which measures speed only");
  if (given.out && !options.sweep)
    return wrong("--out", *given.out, "goes with --sweep; the result of a run goes to --json");
  if (given.out && given.out->empty()) return wrong("--out", "", "give a file name");
  if (!options.file.empty() && options.writes_to_file() && !options.overwrite) {
    const std::string what = options.verify ? "--verify" : "--mode " + given.mode.value_or("mixed");
    return wrong("--file", options.file,
                 what + " overwrites the data in it; add --overwrite if that is meant");
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

}  // namespace sluice::bench
