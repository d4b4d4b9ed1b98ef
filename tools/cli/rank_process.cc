#include "tools/cli/rank_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "aio/cgroup_limits.h"
#include "aio/machine_info.h"
#include "aio/units.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

int exit_code_of_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Reports the end of a rank that could not report it itself. One write, since the other ranks write
// to the same terminal.
void report_end(const Child& child, int status, int saved_code) {
  if (!child.host.empty() && exit_code_of_status(status) == saved_code) return;
  if (!child.host.empty()) {
    std::cerr << ("host " + child.host + ": its ranks ended with exit code " +
                  std::to_string(exit_code_of_status(status)) + "\n");
  } else if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* const name = ::strsignal(number);  // NOLINT(concurrency-mt-unsafe): the only thread
    std::cerr << ("rank " + std::to_string(child.rank) + " was ended by signal " +
                  std::to_string(number) + " (" + name + ")" +
                  (number == SIGKILL ? ", as the kernel does when memory runs out" : "") + "\n");
  }
}

// After one rank fails, the others notice it within seconds, unless they still wait for all ranks
// to connect. Such ranks are asked to end, and finally killed.
class Grace {
 public:
  void begin() {
    if (!due_at_) due_at_ = Clock::now() + std::chrono::seconds(5);
  }
  // Returns the signal that is due now, or 0.
  int due() {
    if (!due_at_ || Clock::now() < *due_at_) return 0;
    due_at_ = Clock::now() + std::chrono::minutes(1);
    return std::exchange(has_asked_, true) ? SIGKILL : SIGTERM;
  }
  bool has_asked() const { return has_asked_; }

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> due_at_;
  bool has_asked_ = false;
};

}  // namespace

int start(std::vector<std::string> words, Variables variables, const HandedDown& handed,
          pid_t& process) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (handed.input >= 0)
    posix_spawn_file_actions_adddup2(&actions, handed.input, STDIN_FILENO);
  else
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // Duplicating a descriptor onto itself clears close-on-exec in the child.
  for (const int descriptor : {handed.lifeline, handed.listener})
    if (descriptor >= 0) posix_spawn_file_actions_adddup2(&actions, descriptor, descriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none{};
  sigemptyset(&none);
  const sigset_t defaults = signals_ignored_here();
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGMASK |  // NOLINT: as declared
                                              POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP));
  const int failed = posix_spawnp(&process, words.front().c_str(), &actions, &attributes,
                                  pointers(words).data(), pointers(variables.all()).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

int wait_for_all(std::vector<Child> children, int saved_code) {
  const Interrupt interrupt;
  bool told = false;
  Grace grace;
  int first_code = 0;
  int other_code = 0;
  const auto runs = [](const Child& child) { return child.process > 0; };
  while (std::any_of(children.begin(), children.end(), runs)) {
    if (interrupt.requested() && !std::exchange(told, true) && runs(children.front()))
      kill(children.front().process, interrupt.first_signal());
    const int due = grace.due();
    for (Child& child : children) {
      if (due != 0 && runs(child)) kill(child.process, due);
      int status = 0;
      if (!runs(child) || waitpid(child.process, &status, WNOHANG) != child.process) continue;
      const int code = exit_code_of_status(status);
      if (code != 0 && code != saved_code) grace.begin();
      if (code != 0 && !grace.has_asked()) report_end(child, status, saved_code);
      int& counts = &child == children.data() ? first_code : other_code;
      if (counts == 0 && !grace.has_asked()) counts = code;
      child.process = 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return first_code != 0 ? first_code : std::min(other_code, 1);
}

Error not_started(const std::string& what, int failed, std::vector<Child> started) {
  for (const Child& child : started) kill(child.process, SIGKILL);
  wait_for_all(std::move(started), kSavedExitCode);
  return Error(ErrorCode::kNotFound, what + " cannot be started: " + std::strerror(failed));
}

Status check_memory(int ranks) {
  constexpr std::uint64_t kOfARank = 256 * kMiB;  // LibTorch and some overhead
  const std::uint64_t available = aio::available_ram_bytes();
  if (available == 0 || static_cast<std::uint64_t>(ranks) * kOfARank <= available) return {};
  const std::uint64_t fit = available / kOfARank;
  const auto group = aio::cgroup_memory();
  const bool is_limited = group && group->room_bytes() <= available;
  return Error(ErrorCode::kOutOfMemory,
               std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                   " on this machine, which has " + format_bytes(available) + " of free memory" +
                   (is_limited ? ", within its control group's limit of " +
                                     format_bytes(group->limit_bytes) + ","
                               : "") +
                   ": each needs " + format_bytes(kOfARank) + " before it reads any data. " +
                   (fit > 0 ? "Start at most " + std::to_string(fit) + " here"
                            : std::string("No rank fits")) +
                   (is_limited ? ", or raise the container's or the job's memory limit"
                               : ", or free some memory"));
}

}  // namespace sluice::tools
