// The options of `sluice train` that start ranks, and starting them.
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
  int gpus = 0;          // likewise
  std::string hostfile;  // likewise
  RemoteStart remote;

  bool are_wanted() const { return ranks > 0 || gpus > 0 || !hostfile.empty(); }
};

void add_rank_options(CLI::App& command, RankOptions& options);

// A batch script and an interactive shell of Slurm's may have all the variables of a task, though
// srun has not started one there: what the user asks for wins, here and in what this starts.
void prefer_asked_ranks(const RankOptions& options, engine::Environment& environment);

// Where this process is to start ranks rather than to be one: does so, and returns their exit code.
// `saved_code`: wait_for_all()'s.
// Errors: kInvalidArgument for options that contradict the launcher or this machine.
Result<std::optional<int>> start_ranks(const RankOptions& options, const engine::Launch& launch,
                                       int saved_code);

}  // namespace sluice::tools
