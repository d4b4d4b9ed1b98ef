// ChildProcess: a program that is asked line by line, and answers each line by one.
//
// The child has one end of a socket as its standard input, and answers there; its standard output
// and error are this program's standard error. The destructor closes the socket, upon which a child
// that reads its input ends, and waits for it.
//
// Threads: one. Errors: kNotFound where the program cannot be started; kIo where it ended instead
// of answering: what it said itself stands on standard error.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

class ChildProcess {
 public:
  // words[0]: the program's path.
  static Result<ChildProcess> start(const std::vector<std::string>& words);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;

  // Without line ends. An answer has at most 64 MiB.
  Result<std::string> ask(const std::string& line);

 private:
  ChildProcess(std::string program, int socket, int process)
      : program_(std::move(program)), socket_(socket), process_(process) {}
  Error ended();

  std::string program_;
  int socket_ = -1;
  int process_ = -1;
  std::string read_;  // behind the last answer
};

}  // namespace sluice::tools
