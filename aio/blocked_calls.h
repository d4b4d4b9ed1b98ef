// BlockedCalls: the file calls that threads of this process are blocked in, as the kernel shows
// them.
//
// /proc/self/task/*/syscall says which call a thread is in, and with what. So no call has to
// announce itself: opening, renaming, listing, syncing a folder, appending to a log, in this
// project's code or a library's. What counts is a call that names a file, by path or descriptor;
// devices, sockets and pipes without a name do not. Threads of a PosixBackend are left out: their
// queue knows more. Only procfs is touched, so that nothing here hangs along with a file system.
//
// A thread is taken to be in the same call as long as the call, its arguments, the text of its
// paths and the count of the thread's finished reads and writes stay the same. So a loop of slow
// transfers is not a hang, while a hang that wakes the thread now and then (NFS resends its
// requests), or a thread that happens to be awake during a look, still counts as one call.
//
// Not seen: a page fault in a mapping of a file, which is not a call; calls beyond the table in
// blocked_calls.cc (extended attributes, ownership, mounting, execution); which file an msync() is
// for; and everything where the kernel does not show calls (gVisor).
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
    std::string call;           // as the kernel shows it
    std::string key;            // the same for as long as it is the same call
    std::string user_time;      // of the thread when it was last seen in the call
  };
  // Looks at every thread. The calls by thread, valid until the next look. A thread that has gone
  // from them was seen outside its call.
  const std::map<pid_t, Blocked>& look(std::int64_t now_ns);

  struct Call {
    std::string text;                // "rename of /nvme/a to /nvme/b"
    std::vector<std::string> paths;  // whose drives it may wait for; may be empty
  };
  // Of a call that the last look() showed. Nothing: it has since returned, or it waits for
  // something other than a drive.
  static std::optional<Call> describe(pid_t thread, const Blocked& blocked);

 private:
  std::map<pid_t, Blocked> blocked_;
};

}  // namespace sluice::aio
