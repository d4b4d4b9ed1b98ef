// The ranks of a run as processes of this one: the same command once more for each, with the
// variables that a launcher would set; and, on other hosts, this program once more by ssh, which
// starts the ranks of its host.
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

// Starts so many of them and waits for all. An interrupt of this process is the first rank's to
// answer; if this process goes, so do they. A rank that a signal ends is named on standard error.
// The exit code is the first rank's, or 1 where only another one failed; `saved_code` is no failure
// (wait_for_all()). Errors: kNotFound where one cannot be started; then none stays.
Result<int> run_ranks(const std::vector<std::string>& words, int ranks, int saved_code);

// Those of one host, of a run that has more: neighbours in the world.
struct HostRanks {
  int first = 0;
  int count = 1;
  int world = 1;
  std::string master_address;  // of the first host, as the others reach it
  int master_port = engine::kDefaultMasterPort;
  std::string job;     // of this start and of no other: digits
  std::string secret;  // likewise; to another host it goes by standard input
};

struct RemoteStart {
  // As rsync's -e: the words of a command that gets a host and a line for its shell.
  std::string shell = "ssh -o BatchMode=yes";
  int master_port = engine::kDefaultMasterPort;
};

// A rank for each slot. The first host is this machine; on each of the others `shell` runs this
// program in the same folder, with NCCL_*, OMP_*, PATH and LD_LIBRARY_PATH as they are here. As
// run_ranks() otherwise; where a host's ranks end by themselves with a failure, the rest get a
// while to end by their own account, and are then ended. Errors: kInvalidArgument where the first
// host is another one, or has a name that the others cannot use.
Result<int> run_hosts(const std::vector<std::string>& words,
                      const std::vector<engine::HostSlots>& hosts, const RemoteStart& remote,
                      int saved_code);

// In a process that run_hosts() has started on another host: which ranks it has to start.
Result<std::optional<HostRanks>> ranks_of_this_host();
Result<int> run_host_ranks(const std::vector<std::string>& words, const HostRanks& ranks,
                           int saved_code);

// Whether this process is a rank that was started so, beside the others at one terminal.
bool is_started_rank();

// In a rank that was started so, at the beginning: a socket that listens for the others, or -1.
// From here on it stops as by a first signal when the process that started it ends, or has ended.
int begin_as_rank();

}  // namespace sluice::tools
