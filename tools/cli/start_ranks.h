// Starts the ranks of a run as child processes: the same command once for each rank, with the
// variables that a launcher would set. On other hosts it starts this program by ssh, which starts
// the ranks of its host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/rank_context.h"

namespace sluice::tools {

// The command line of this process.
Result<std::vector<std::string>> own_words();

// Starts `ranks` ranks and waits for all of them. An interrupt of this process is handled by the
// first rank; if this process ends, the ranks end too. A rank that a signal ends is named on
// standard error. The exit code is the first rank's, or 1 if only another rank failed; `saved_code`
// is no failure (wait_for_all()). Errors: kNotFound if a rank cannot be started; the others are
// then ended.
Result<int> run_ranks(const std::vector<std::string>& words, int ranks, int saved_code);

// The ranks of one host in a run with several hosts; their numbers in the world are consecutive.
struct HostRanks {
  int first = 0;
  int count = 1;
  int world = 1;
  std::string master_address;  // the first host, as the others reach it
  int master_port = engine::kDefaultMasterPort;
  std::string job;     // unique to this start; digits
  std::string secret;  // unique to this start; passed to other hosts on standard input
};

struct RemoteStart {
  // Like rsync's -e: the words of a command that takes a host and a line for its shell.
  std::string shell = "ssh -o BatchMode=yes";
  int master_port = engine::kDefaultMasterPort;
};

// Starts one rank per slot. The first host is this machine; on each other host `shell` runs this
// program in the same folder, with this process's NCCL_*, OMP_*, PATH and LD_LIBRARY_PATH.
// Otherwise like run_ranks(). If a host's ranks fail on their own, the other hosts get some time to
// end by themselves and are then ended. Errors: kInvalidArgument if the first host is not this
// machine, or has a name that the others cannot use.
Result<int> run_hosts(const std::vector<std::string>& words,
                      const std::vector<engine::HostSlots>& hosts, const RemoteStart& remote,
                      int saved_code);

// In a process that run_hosts() has started on another host: the ranks that it has to start.
Result<std::optional<HostRanks>> ranks_of_this_host();
Result<int> run_host_ranks(const std::vector<std::string>& words, const HostRanks& ranks,
                           int saved_code);

// Whether this process is a rank that was started here and shares a terminal with the others.
bool is_started_rank();

// Called first in such a rank. Returns a socket that listens for the other ranks, or -1. From now
// on the rank stops as on a first signal when the process that started it ends or has already
// ended.
int begin_as_rank();

}  // namespace sluice::tools
