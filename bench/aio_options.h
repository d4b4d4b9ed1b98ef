// The options of aio_bench: as typed, and as checked values.
//
// parse_options() checks only the text; check_places() then checks folders, files and free space.
// Every error is one sentence that names the option, its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/make_backend.h"
#include "aio/result.h"
#include "bench/aio_mode.h"

namespace sluice::bench {

// An empty optional: not given.
struct AioArguments {
  std::vector<std::string> paths;
  std::optional<std::string> file, size, mode, block_size, queue_depth, threads, backend, seconds,
      ramp, runs, seed, stripe_size, weights, json, out;
  bool overwrite = false;
  bool single_submit = false;
  bool verify = false;
  bool sweep = false;
};

struct AioOptions {
  std::vector<std::string> paths;  // folders for the scratch file; empty with `file`
  std::string file;                // an existing file to measure instead
  std::uint64_t size_bytes = 0;    // size of the measured range; with `file` 0 means all of it
  std::uint64_t stripe_bytes = 0;
  std::vector<int> weights;
  std::vector<Mode> modes;  // one, or three for "all"
  std::uint64_t block_bytes = 0;
  int queue_depth = 0;  // per thread
  int threads = 0;
  double seconds = 0;
  double ramp_seconds = 0;
  std::uint64_t seed = 0;
  std::string json;  // "-": standard output
  std::string out;   // for a sweep
  int runs = 0;
  aio::BackendKind backend = aio::BackendKind::kAuto;
  bool overwrite = false;
  bool auto_weights = false;
  bool single_submit = false;
  bool verify = false;
  bool sweep = false;
  // Given dimensions are not swept.
  bool sweep_block = true;
  bool sweep_depth = true;
  bool sweep_threads = true;

  bool writes_to_file() const;  // the measured file is modified
};

Result<AioOptions> parse_options(const AioArguments& arguments);

// Checks the places that the options name, and rounds size_bytes to the file and to whole blocks.
// `notes` gets sentences that the user should read.
Status check_places(aio::FileSystem& files, AioOptions& options, std::vector<std::string>& notes);

// Reads aio_bench's command line. nullopt: help or version was requested and printed.
// kInvalidArgument: one sentence.
Result<std::optional<AioOptions>> parse_command_line(int argc, const char* const* argv);

}  // namespace sluice::bench
