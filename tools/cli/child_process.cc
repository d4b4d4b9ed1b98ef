#include "tools/cli/child_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
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

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(std::vector<std::string> words,
                                                          const ChildOptions& options) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Error::from_errno(errno, {.operation = "socketpair"});
  const timeval poll_every{.tv_sec = 0, .tv_usec = 100'000};  // of ask()
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &poll_every, sizeof(poll_every));
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (options.output >= 0) posix_spawn_file_actions_adddup2(&actions, options.output, stream);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none{};
  sigemptyset(&none);
  const sigset_t defaults = signals_ignored_here();
  posix_spawnattr_setsigmask(&attributes, &none);  // otherwise a child could not be interrupted
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  const int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                    (options.own_group ? POSIX_SPAWN_SETPGROUP : 0);
  posix_spawnattr_setflags(&attributes, static_cast<short>(flags));  // NOLINT: as declared
  int process = -1;
  const int failed =
      posix_spawnp(&process, arguments.front(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::unique_ptr<ChildProcess> child(
      new ChildProcess(words.front(), ends[0], failed == 0 ? process : -1));
  if (failed == 0) return child;
  return Error(ErrorCode::kNotFound,
               words.front() + " cannot be started: " + std::strerror(failed));
}

ChildProcess::~ChildProcess() {
  end_input();
  reap(0);
}

// `flags`: of waitpid().
void ChildProcess::reap(int flags) {
  int status = 0;
  pid_t ended = 0;
  while (process_ >= 0 && (ended = waitpid(process_, &status, flags)) < 0 && errno == EINTR) {
  }
  if (ended != process_) return;
  process_ = -1;
  status_ = status;
}

std::string ChildProcess::ending() const {
  if (status_ < 0) return {};
  if (WIFEXITED(status_)) return "with exit code " + std::to_string(WEXITSTATUS(status_));
  const int number = WTERMSIG(status_);
  return "by signal " + std::to_string(number) + " (" + strsignal(number) + ")" +
         (number == SIGKILL ? ", as the kernel does when memory runs out" : "");
}

int ChildProcess::exit_code() const {
  if (status_ < 0) return 0;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

bool ChildProcess::runs() {
  reap(WNOHANG);
  return process_ >= 0;
}

void ChildProcess::end_input() { socket_ = aio::OwnedDescriptor(-1); }

void ChildProcess::leave() {
  end_input();
  process_ = -1;
}

void ChildProcess::send_signal(int number) const {
  if (process_ >= 0) kill(process_, number);
}

void ChildProcess::stop(double patience_s) {
  end_input();
  send_signal(SIGTERM);
  const SteadyClock clock;
  const std::int64_t deadline_ns = clock.now_ns() + static_cast<std::int64_t>(patience_s * 1e9);
  while (runs() && clock.now_ns() < deadline_ns) nap_until(clock, deadline_ns);
  send_signal(SIGKILL);
  reap(0);
}

bool ChildProcess::tell(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  return true;
}

Result<std::string> ChildProcess::ask(const std::string& line, const std::function<bool()>& go_on) {
  constexpr std::size_t kMostOfAnAnswer = std::size_t{64} << 20;
  std::array<char, 65536> piece{};
  ssize_t count = tell(line) ? 1 : 0;
  std::size_t end = read_.find('\n');
  while (count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN))) {
    if (end != std::string::npos) {
      std::string answer = read_.substr(0, end);
      read_.erase(0, end + 1);
      return answer;
    }
    if (read_.size() > kMostOfAnAnswer)
      return Error(ErrorCode::kIo, program_ + " sent an unterminated reply");
    if (go_on && !go_on()) return Error(ErrorCode::kCancelled, program_ + " was not waited for");
    count = recv(socket_.get(), piece.data(), piece.size(), 0);
    const std::size_t before = read_.size();
    if (count > 0) read_.append(piece.data(), static_cast<std::size_t>(count));
    end = read_.find('\n', before);
  }
  reap(0);
  return Error(ErrorCode::kIo,
               program_ + " did not answer: it ended " + ending() + "; see its message above");
}

}  // namespace sluice::tools
