// Starts the ranks of `sluice train` as child processes: the same command once for each rank, with
// the variables that torchrun would set. On another host of a hostfile, ssh starts this program,
// which starts the ranks of its host.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/rank_context.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// The options that start ranks.
struct RankOptions {
  int ranks = 0;  // 0: as launched
  int gpus = 0;   // 0: as launched
  std::string hostfile;
  std::vector<engine::HostSlots> hosts;  // of the hostfile; empty: as launched
  // Like rsync's -e: the words of a command that takes a host and a line for its shell.
  std::string shell = "ssh -o BatchMode=yes";
  int master_port = engine::kDefaultMasterPort;  // with a hostfile

  bool are_wanted() const { return ranks > 0 || gpus > 0 || !hosts.empty(); }
};
// Refuses a hostfile that cannot be read, or whose first host is not this one.
void add_rank_options(CLI::App& command, RankOptions& options);

// If this process has to start ranks rather than be one, starts them and waits for them. Returns
// the exit code: the first rank's, or 1 if only another rank failed. `saved_code` is no failure.
//
// The first signal that this process gets is passed on to the first rank. If this process ends, the
// ranks stop as on a first signal. A rank that a signal ends is named on standard error. After a
// failure the other ranks and hosts get some time to end by themselves, and are then ended.
// Errors: kInvalidArgument for options that contradict the launcher or this machine; kNotFound if a
// rank or another host cannot be started, after the others were ended.
Result<std::optional<int>> start_ranks(const RankOptions& options, engine::Launch launch,
                                       int saved_code);

// Whether this process is a rank that was started here and shares a terminal with the others.
bool is_started_rank();

// Called by each rank, before it uses a GPU. From now on this process sees only the GPU of its
// local rank, or none if there are fewer GPUs than ranks. It stops when the process that started it
// ends. Returns a socket that listens for the other ranks, or -1.
int begin_as_rank(const engine::RankContext& context);

}  // namespace sluice::tools
