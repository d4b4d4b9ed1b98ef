#include "tools/cli/child_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "aio/clock.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

constexpr std::size_t kMostOfAnAnswer = std::size_t{64} << 20;

constexpr int kPollMs = 100;

std::string how_it_ended(int status) {
  if (WIFEXITED(status)) return "with exit code " + std::to_string(WEXITSTATUS(status));
  const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return "by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

// `end` becomes the child's standard input.
int spawn(const std::vector<std::string>& words, int end, const ChildProcess::Options& options,
          int& process) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));  // NOLINT: as posix_spawn declares it
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, options.output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, options.output, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none{};
  sigemptyset(&none);
  const sigset_t defaults = signals_ignored_here();
  posix_spawnattr_setsigmask(&attributes, &none);  // otherwise a child could not be interrupted
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |  // NOLINT: as declared
                         (options.own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  const int failed =
      posix_spawn(&process, arguments.front(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& words,
                                         const Options& options) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Error(ErrorCode::kIo, std::string("socketpair: ") + std::strerror(errno));
  int process = -1;
  const int failed = spawn(words, ends[1], options, process);
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
      ending_(std::move(other.ending_)),
      ended_by_signal_(other.ended_by_signal_),
      read_(std::move(other.read_)) {}

ChildProcess::~ChildProcess() {
  if (socket_ >= 0) close(socket_);
  if (process_ < 0) return;
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Error ChildProcess::ended() {
  int status = 0;
  pid_t reaped = -1;
  while (process_ >= 0 && (reaped = waitpid(process_, &status, 0)) < 0 && errno == EINTR) {
  }
  process_ = -1;
  if (reaped > 0) note_ending(status);
  return Error(ErrorCode::kIo, program_ + " ended " + ending_ + (ending_.empty() ? "" : " ") +
                                   "instead of answering; see its message above");
}

void ChildProcess::note_ending(int status) {
  ending_ = how_it_ended(status);
  ended_by_signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

bool ChildProcess::runs() {
  int status = 0;
  if (process_ < 0 || waitpid(process_, &status, WNOHANG) != process_) return process_ >= 0;
  process_ = -1;
  note_ending(status);
  return false;
}

void ChildProcess::end_input() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

void ChildProcess::leave() {
  end_input();
  process_ = -1;
}

void ChildProcess::stop(double patience_s) {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
  if (process_ < 0) return;
  kill(process_, SIGTERM);
  const SteadyClock clock;
  const std::int64_t deadline_ns = clock.now_ns() + static_cast<std::int64_t>(patience_s * 1e9);
  pid_t ended = 0;
  while ((ended = waitpid(process_, nullptr, WNOHANG)) == 0 && clock.now_ns() < deadline_ns)
    nap_until(clock, deadline_ns);
  if (ended == 0) {
    kill(process_, SIGKILL);
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  process_ = -1;
}

Status ChildProcess::send_line(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return ended();
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  return {};
}

Result<std::string> ChildProcess::ask(const std::string& line) {
  return ask(line, [] { return true; });
}

Result<std::string> ChildProcess::ask(const std::string& line, const std::function<bool()>& go_on) {
  SLUICE_RETURN_IF_ERROR(send_line(line));
  std::array<char, 65536> piece{};
  while (true) {
    const std::size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string answer = read_.substr(0, end);
      read_.erase(0, end + 1);
      return answer;
    }
    if (read_.size() > kMostOfAnAnswer)
      return Error(ErrorCode::kIo, program_ + " sent an unterminated reply");
    if (!go_on()) return Error(ErrorCode::kCancelled, program_ + " was not waited for");
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMs) == 0) continue;
    const ssize_t count = recv(socket_, piece.data(), piece.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return ended();
    read_.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace sluice::tools
