// ChildProcess: a program that is asked line by line, and answers each line with one line.
//
// The child has one end of a socket as its standard input, and answers there; its standard output
// and error are this program's standard error, or a file. The destructor closes the socket,
// whereupon a child that reads its input ends, and waits for it.
//
// Threads: one.
// Errors:  kNotFound where the program cannot be started; kIo where it ended instead of answering,
//          and how: what it printed itself is where its standard error goes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

class ChildProcess {
 public:
  struct Options {
    int output = 2;          // a descriptor: what the child's output and error become
    bool own_group = false;  // a terminal's Ctrl-C does not reach it
  };
  // words[0]: the program's path.
  static Result<ChildProcess> start(const std::vector<std::string>& words, const Options& options);
  static Result<ChildProcess> start(const std::vector<std::string>& words) {
    return start(words, Options());
  }
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;

  // Without line ends. An answer has at most 64 MiB.
  Result<std::string> ask(const std::string& line);
  // `go_on` is called ten times a second while there is no answer; if it returns false: kCancelled.
  Result<std::string> ask(const std::string& line, const std::function<bool()>& go_on);

  // SIGTERM, and SIGKILL if that has not ended it within this time. Nothing can be asked
  // afterwards.
  void stop(double patience_s);

  // Whether it has not ended yet; does not wait.
  bool runs();
  // Closes the socket: a child that reads its input sees its end. Nothing can be asked afterwards.
  void end_input();
  // Likewise, and lets it go on by itself.
  void leave();

  int process() const { return process_; }  // -1: it has ended
  // "by signal 9 (Killed)", "with exit code 1", where it ended by itself; else empty.
  const std::string& ending() const { return ending_; }
  int ended_by_signal() const { return ended_by_signal_; }  // 0: by none

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
  std::string read_;  // after the last answer
};

}  // namespace sluice::tools
