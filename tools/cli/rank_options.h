// The options of `sluice train` that start ranks, and the code that starts them.
#pragma once

#include <optional>
#include <string>

#include "aio/result.h"
#include "engine/comm/rank_context.h"
#include "tools/cli/start_ranks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

struct RankOptions {
  int ranks = 0;         // 0: as launched
  int gpus = 0;          // 0: as launched
  std::string hostfile;  // empty: as launched
  RemoteStart remote;

  bool are_wanted() const { return ranks > 0 || gpus > 0 || !hostfile.empty(); }
};

void add_rank_options(CLI::App& command, RankOptions& options);

// Slurm batch scripts and interactive shells may have all the variables of a task, though srun has
// not started one there. The user's options therefore take precedence, in this process and in those
// that it starts.
void prefer_asked_ranks(const RankOptions& options, engine::Environment& environment);

// If this process has to start ranks rather than be one, starts them, waits for them and returns
// their exit code. `saved_code`: as for wait_for_all().
// Errors: kInvalidArgument for options that contradict the launcher or this machine.
Result<std::optional<int>> start_ranks(const RankOptions& options, const engine::Launch& launch,
                                       int saved_code);

}  // namespace sluice::tools
