#include "bench/checkpoint_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "aio/units.h"
#include "bench/option_values.h"
#include "tools/support/command_line.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kMaxReferenceBytes = 8 * kGiB;

constexpr const char* kDescription =
    "Saves and loads checkpoints - weights and both moments in fp32, including checksums - "
    "and\nmeasures aio's sequential writes and reads on the same path in the same run. The "
    "checkpoint\nis stored in its own folder below --path, which is removed at the end. K, M, G "
    "are powers of\n1024; GB/s is 10^9 bytes per second.";

constexpr const char* kExamples =
    "Examples:\n"
    "  checkpoint_bench --path /nvme\n"
    "      512M parameters: 6 GiB saved and loaded three times\n"
    "  checkpoint_bench --path /nvme --parameters 1500M --runs 5 --json out.json\n"
    "\n"
    "Exit codes: 0 done; 1 an IO error or wrong data; 2 a mistake in the options; 130 Ctrl-C.";

// An empty optional: not given.
struct CheckpointArguments {
  std::vector<std::string> paths;
  std::optional<std::string> parameters, shard_size, chunks, runs, backend, block_size, queue_depth,
      json;
};

struct Bounds {
  std::uint64_t smallest;
  std::uint64_t largest;
};

Result<std::uint64_t> number_of(const char* option, const std::string& text, const Bounds& bounds) {
  const auto value = parse_bytes(text);
  if (!value.ok() || *value < bounds.smallest || *value > bounds.largest)
    return wrong(option, text,
                 "give a number from " + format_bytes(bounds.smallest) + " to " +
                     format_bytes(bounds.largest));
  return *value;
}

Result<CheckpointBenchOptions> parse(const CheckpointArguments& given) {
  CheckpointBenchOptions options;
  SLUICE_ASSIGN_OR_RETURN(options.parameters,
                          number_of("--parameters", given.parameters.value_or("512M"),
                                    {.smallest = kMiB, .largest = kTiB}));
  SLUICE_ASSIGN_OR_RETURN(options.shard_bytes,
                          number_of("--shard-size", given.shard_size.value_or("4G"),
                                    {.smallest = kMiB, .largest = kTiB}));
  SLUICE_ASSIGN_OR_RETURN(options.chunks,
                          small_number("--chunks", given.chunks.value_or("4"), 2, 64));
  SLUICE_ASSIGN_OR_RETURN(options.runs, small_number("--runs", given.runs.value_or("3"), 1, 100));
  if (given.paths.size() > 1)
    return wrong("--path", given.paths[1], "a checkpoint is stored in one folder; give one");
  // Options shared with aio_bench are checked by the same code and reported in the same words.
  AioArguments io;
  io.paths = given.paths;
  io.size = std::to_string(
      std::clamp<std::uint64_t>(options.state_bytes(), 4 * kMiB, kMaxReferenceBytes));
  io.mode = "write";
  io.block_size = given.block_size;
  io.queue_depth = given.queue_depth;
  io.backend = given.backend;
  io.json = given.json;
  SLUICE_ASSIGN_OR_RETURN(options.io, parse_options(io));
  options.io.size_bytes =
      std::max(options.io.block_bytes, align_down(options.io.size_bytes, options.io.block_bytes));
  return options;
}

}  // namespace

Result<std::optional<CheckpointBenchOptions>> parse_checkpoint_command_line(
    int argc, const char* const* argv) {
  CheckpointArguments to;
  CLI::App app(kDescription, "checkpoint_bench");
  app.footer(kExamples);
  // Every value is parsed as text, since parse() gives better errors than CLI11.
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* kind,
                          const char* help) {
    app.add_option(name, value, help)->type_name(kind)->allow_extra_args(false);
  };
  app.add_option("--path", to.paths, "folder for the checkpoint [.]")
      ->type_name("DIR")
      ->allow_extra_args(false);
  add("--parameters", to.parameters, "N", "parameters of the model, of 12 bytes each [512M]");
  add("--shard-size", to.shard_size, "BYTES", "size of one file's data [4G]");
  add("--chunks", to.chunks, "N", "chunks of 4M in flight, for each of three files [4]");
  add("--queue-depth", to.queue_depth, "N", "blocks in flight [32]");
  add("--block-size", to.block_size, "BYTES", "a multiple of 4096 [1M]");
  add("--backend", to.backend, "NAME", "uring, posix, or auto: uring if it works [auto]");
  add("--runs", to.runs, "N", "saves and loads, of which medians are shown [3]");
  add("--json", to.json, "FILE", "write all numbers to this file; -: standard output");
  SLUICE_ASSIGN_OR_RETURN(const bool given, tools::parse_words(app, argc, argv));
  if (!given) return std::optional<CheckpointBenchOptions>();
  SLUICE_ASSIGN_OR_RETURN(CheckpointBenchOptions options, parse(to));
  return std::optional<CheckpointBenchOptions>(std::move(options));
}

}  // namespace sluice::bench
