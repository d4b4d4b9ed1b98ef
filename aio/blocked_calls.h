// BlockedCalls: the file calls in which threads of this process are blocked, as reported by the
// kernel.
//
// /proc/self/task/*/syscall shows which call a thread is in, with its arguments. So calls need not
// announce themselves: opening, renaming, listing, syncing a folder, appending to a log, in
// Sluice's code or in a library. Only calls that name a file, by path or descriptor, count;
// devices, sockets and unnamed pipes do not. Threads of a PosixBackend are left out, because their
// queue has more information. The code reads only procfs, so it does not hang along with a file
// system.
//
// A thread is assumed to be in the same call while the call, its arguments, the text of its paths
// and the thread's count of finished transfers stay the same. So a loop of slow transfers is not a
// hang. A hang that wakes the thread now and then (NFS resends its requests), or a thread that
// happens to be awake during a look, still counts as one call.
//
// Not detected:
// - page faults in a mapping of a file, which are not calls
// - calls that are not in the table in blocked_calls.cc (extended attributes, ownership, mounting,
//   execution)
// - which file an msync() is for
// - everything, if the kernel does not show calls (gVisor)
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::aio {

class BlockedCalls {
 public:
  struct Blocked {
    std::int64_t since_ns = 0;  // when it was first seen
    std::string call;           // in the kernel's format
    std::string key;            // stays the same during one call
    std::string user_time;      // the thread's, when it was last seen in the call
  };
  // Looks at every thread and returns the calls by thread, valid until the next look. A thread that
  // is no longer listed was seen outside its call.
  const std::map<pid_t, Blocked>& look(std::int64_t now_ns);

  struct Call {
    std::string text;                // "rename of /nvme/a to /nvme/b"
    std::vector<std::string> paths;  // paths whose drives it may wait for; may be empty
  };
  // Describes a call that the last look() showed. Empty: it has returned since, or it waits for
  // something other than a drive.
  static std::optional<Call> describe(pid_t thread, const Blocked& blocked);

 private:
  std::map<pid_t, Blocked> blocked_;
};

}  // namespace sluice::aio
