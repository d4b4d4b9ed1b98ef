// Lists of hosts in the formats of launchers: Slurm's, and DeepSpeed's hostfile.
//
// Threads: any. Errors: kInvalidArgument, with the fault in the list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"

namespace sluice::engine {

// Slurm's node list, "gpu[01-03,7],login" -> gpu01 gpu02 gpu03 gpu7 login; at most kMaxRanks.
Result<std::vector<std::string>> parse_node_list(std::string_view list);
// Slurm's tasks per node, "2(x3),1" -> 2 2 2 1.
Result<std::vector<int>> parse_tasks_per_node(std::string_view counts);

// The name in lower case: names of hosts that differ in case alone are the same (RFC 4343).
std::string compared_host(std::string_view host);

// A line of DeepSpeed's hostfile: "host slots=N". '#' begins a comment; empty lines are skipped.
struct HostSlots {
  std::string host;  // in ssh's form: "host" or "user@host"
  int slots = 0;

  std::string address() const { return host.substr(host.rfind('@') + 1); }
  bool operator==(const HostSlots&) const = default;
};
// In the order of the file; errors name the line. A file without a host, or with a duplicate, is
// refused.
Result<std::vector<HostSlots>> parse_hostfile(std::string_view text);

}  // namespace sluice::engine
