// Starts the processes of `sluice train` for the ranks of a run, and waits for them.
//
// Threads: one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

// This process's environment; set() replaces variables of the same name.
class Variables {
 public:
  Variables() {
    for (char** it = environ; *it != nullptr; ++it) all_.emplace_back(*it);
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(all_, [&](const std::string& it) { return it.starts_with(name + "="); });
    all_.push_back(name + "=" + value);
  }
  std::vector<std::string>& all() { return all_; }

 private:
  std::vector<std::string> all_;
};

// The descriptors that a rank inherits; -1: none.
struct HandedDown {
  int lifeline = -1;
  int listener = -1;
  int input = -1;  // standard input; -1: empty
};

// Starts a program in a process group of its own, so that a terminal's Ctrl-C reaches only this
// process. `words[0]` is looked up in PATH unless it is a path. Returns 0 or an errno value.
int start(std::vector<std::string> words, Variables variables, const HandedDown& handed,
          pid_t& process);

// A started process: a rank, or the process that starts another host's ranks.
struct Child {
  pid_t process = 0;  // 0: it has ended
  std::string host;   // empty: a rank of this host
  int rank = 0;       // on this host
};

// Returns once all of them have ended: the first child's exit code if that is not 0, else 1 if
// another child failed. `saved_code`: the exit code of a run that a signal ended and that was
// saved, which is no failure. The first signal that this process gets is passed on unchanged to the
// first child, since a scheduler's warning must not count as a stop.
int wait_for_all(std::vector<Child> children, int saved_code);

// Ends the processes that were already started, and returns the error.
Error not_started(const std::string& what, int failed, std::vector<Child> started);

// kOutOfMemory if the bare processes of that many ranks do not fit into this machine's memory.
Status check_memory(int ranks);

}  // namespace sluice::tools
