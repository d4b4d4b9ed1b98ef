// A process that `sluice train` starts for the ranks of a run, and waiting for all of them.
//
// Threads: one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

// The variables of this process, with others in place of those of the same names.
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

// The descriptors that a rank is given: -1 for none.
struct HandedDown {
  int lifeline = -1;
  int listener = -1;
  int input = -1;  // standard input; -1: nothing comes from there
};

// In a process group of its own: a terminal's Ctrl-C reaches this process alone.
// `words` name a program of PATH, or by its path. Zero, or an error's number.
int start(std::vector<std::string> words, Variables variables, const HandedDown& handed,
          pid_t& process);

// A process that is waited for: a rank, or another host's.
struct Child {
  pid_t process = 0;  // 0: it has ended
  std::string host;   // empty: a rank of this one
  int rank = 0;       // of this host
};

// Ends with all of them. The first code that is not 0 counts, and the first one's before others.
// `saved_code`: theirs where a signal has ended a run that is saved, which is no failure. The first
// signal that this process gets is passed on to the first one as it is: a scheduler's warning must
// not count as a stop.
int wait_for_all(std::vector<Child> children, int saved_code);

// On a failure none of them stays.
Error not_started(const std::string& what, int failed, std::vector<Child> started);

// kOutOfMemory, before ranks are started whose bare processes do not fit into this machine.
Status check_memory(int ranks);

}  // namespace sluice::tools
