// ChildProcess: a child program that reads one line per request and answers it with one line.
//
// The child reads from one end of a socket as its standard input and writes its answers there. Its
// standard output and error are redirected to this program's standard error, or to a file. The
// destructor closes the socket, which ends a child that reads its input, and waits for the child.
//
// Threads: one.
// Errors:  kNotFound if the program cannot be started; kIo if it ended instead of answering. The
//          message says how it ended; what the child printed is where its standard error goes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/support/scripts.h"  // find_script()

namespace sluice::tools {

class ChildProcess {
 public:
  struct Options {
    int output = 2;          // descriptor that becomes the child's standard output and error
    bool own_group = false;  // keeps a terminal's Ctrl-C from reaching the child
  };
  // words[0]: the program's path.
  static Result<ChildProcess> start(const std::vector<std::string>& words, const Options& options);
  static Result<ChildProcess> start(const std::vector<std::string>& words) {
    return start(words, Options());
  }
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;

  // Lines and answers have no line ends. An answer has at most 64 MiB.
  Result<std::string> ask(const std::string& line);
  // Calls `go_on` ten times a second while waiting for the answer; returns kCancelled once it
  // returns false.
  Result<std::string> ask(const std::string& line, const std::function<bool()>& go_on);

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

  int process() const { return process_; }  // -1: it has ended
  // "by signal 9 (Killed)" or "with exit code 1" if the child ended by itself; otherwise empty.
  const std::string& ending() const { return ending_; }
  int ended_by_signal() const { return ended_by_signal_; }  // 0: none

 private:
  ChildProcess(std::string program, int socket, int process)
      : program_(std::move(program)), socket_(socket), process_(process) {}
  Error ended();
  void note_ending(int status);
  Status send_line(const std::string& line);

  std::string program_;
  int socket_ = -1;
  int process_ = -1;
  std::string ending_;
  int ended_by_signal_ = 0;
  std::string read_;  // received after the last answer
};

}  // namespace sluice::tools
