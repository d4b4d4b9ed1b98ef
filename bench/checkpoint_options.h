// The options of checkpoint_bench as checked values. Every error is one sentence that names the
// option, its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/result.h"
#include "bench/aio_options.h"

namespace sluice::bench {

struct CheckpointBenchOptions {
  // Path, backend, block size, queue depth and --json. Its size is the size of the reference's
  // file.
  AioOptions io;
  std::uint64_t parameters = 0;
  std::uint64_t shard_bytes = 0;
  int chunks = 0;  // in flight per family
  int runs = 0;

  const std::string& path() const { return io.paths.front(); }
  std::uint64_t state_bytes() const { return 12 * parameters; }
};

// nullopt: --help or --version was requested and printed.
Result<std::optional<CheckpointBenchOptions>> parse_checkpoint_command_line(
    int argc, const char* const* argv);

}  // namespace sluice::bench
