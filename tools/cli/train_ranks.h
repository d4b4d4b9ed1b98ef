// `sluice train` on several ranks: the options that start them, how they meet, and the work of all
// ranks but the first. The first rank owns the run's folder, reads the configuration, reports and
// saves. The others get their configuration from it and follow.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"
#include "tools/cli/start_ranks.h"
#include "tools/session/train_start.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// The options that start ranks.
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

// Called by each rank before it uses a GPU: this process then sees only the GPU of its local rank,
// or none if there are fewer GPUs than ranks.
void see_own_gpu(const engine::RankContext& context);

// The first rank sends the located run to the others. kInvalidArgument if a rank does not see the
// run's folder.
Status hand_out(engine::Communicator& link, const LocatedRun& run);

// Called by all ranks after they have freed their resources, so that no rank exits before the
// others. Launchers kill the other ranks when one exits with a code that is not 0. Returns the
// first rank's `code`.
int end_together(engine::Communicator& link, int code);

// Everything that a rank other than the first does, until the first one ends. If a signal ended the
// first rank, returns its code. Only the first rank handles signals that a terminal or a launcher
// sends to all ranks.
Result<int> follow_first_rank(const engine::RankContext& context, engine::Communicator& link,
                              aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
