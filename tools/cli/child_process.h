// ChildProcess: a child program. It may read one line per request and answer it with one line.
//
// The child's standard input is one end of a socket, which carries requests and answers. The
// destructor closes the socket, which ends a child that reads its input, and waits for the child.
//
// Threads: one.
// Errors:  kNotFound if the program cannot be started; kIo if it ended instead of answering. The
//          message says how it ended; what the child printed is where its standard error goes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/regular_file.h"
#include "aio/result.h"

namespace sluice::tools {

struct ChildOptions {
  // The descriptor that becomes its standard output and error. -1: it has this process's own.
  int output = 2;
  bool own_group = false;  // keeps a terminal's Ctrl-C from reaching the child
};

class ChildProcess {
 public:
  // words[0]: the program's path, or its name in PATH.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> words,
                                                     const ChildOptions& options = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Lines and answers have no line ends. An answer has at most 64 MiB. Calls `go_on` ten times a
  // second while waiting; returns kCancelled once it returns false.
  Result<std::string> ask(const std::string& line, const std::function<bool()>& go_on = {});
  // Without an answer. False: the child has closed its input.
  bool tell(const std::string& line);

  void send_signal(int number) const;
  // Sends SIGTERM, then SIGKILL if the child has not ended after `patience_s`. ask() must not be
  // called afterwards.
  void stop(double patience_s);

  // Whether the child is still running; does not wait.
  bool runs();
  // Closes the socket, so that the child reads the end of its input. ask() must not be called
  // afterwards.
  void end_input();
  // Closes the socket and detaches from the child, which keeps running.
  void leave();

  // Once it has ended: "by signal 9 (Killed), as the kernel does when memory runs out" or "with
  // exit code 1"; otherwise empty.
  std::string ending() const;
  // Once it has ended, as a shell has it: 128 + the number of a signal; otherwise 0.
  int exit_code() const;

 private:
  ChildProcess(std::string program, int socket, int process)
      : program_(std::move(program)), socket_(socket), process_(process) {}
  void reap(int flags);

  const std::string program_;
  aio::OwnedDescriptor socket_;
  int process_;       // -1: it has ended
  int status_ = -1;   // as waitpid() reports it; -1: it runs
  std::string read_;  // received after the last answer
};

}  // namespace sluice::tools
