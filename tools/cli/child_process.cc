#include "tools/cli/child_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::tools {
namespace {

constexpr std::size_t kMostOfAnAnswer = std::size_t{64} << 20;

// `end` becomes the child's standard input.
int spawn(const std::vector<std::string>& words, int end, int& process) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));  // NOLINT: as posix_spawn declares it
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const int failed =
      posix_spawn(&process, arguments.front(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Error(ErrorCode::kIo, std::string("socketpair: ") + std::strerror(errno));
  int process = -1;
  const int failed = spawn(words, ends[1], process);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    return Error(ErrorCode::kNotFound,
                 words.front() + " cannot be started: " + std::strerror(failed));
  }
  return ChildProcess(words.front(), ends[0], process);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : program_(std::move(other.program_)),
      socket_(std::exchange(other.socket_, -1)),
      process_(std::exchange(other.process_, -1)),
      read_(std::move(other.read_)) {}

ChildProcess::~ChildProcess() {
  if (socket_ >= 0) close(socket_);
  if (process_ < 0) return;
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Error ChildProcess::ended() {
  return Error(ErrorCode::kIo, program_ + " ended instead of answering; above it says why");
}

Result<std::string> ChildProcess::ask(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return ended();
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  std::array<char, 65536> piece{};
  while (true) {
    const std::size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string answer = read_.substr(0, end);
      read_.erase(0, end + 1);
      return answer;
    }
    if (read_.size() > kMostOfAnAnswer)
      return Error(ErrorCode::kIo, program_ + " answers without an end");
    const ssize_t count = read(socket_, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ended();
    read_.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace sluice::tools
