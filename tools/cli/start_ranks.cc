#include "tools/cli/start_ranks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

constexpr const char* kListener = "SLUICE_LISTENER";  // the first rank's: a descriptor
constexpr const char* kStarted = "SLUICE_STARTED_RANK";

Error system_error(const char* what) {
  return Error(ErrorCode::kIo, std::string(what) + ": " + std::strerror(errno));
}

// A free port of this machine, which nothing else gets before the first rank listens there.
struct Listener {
  int socket = -1;
  int port = 0;

  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    if (socket >= 0) close(socket);
  }
  Status open() {
    socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return system_error("socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket, generic, size) != 0) return system_error("bind");
    if (listen(socket, SOMAXCONN) != 0) return system_error("listen");
    if (getsockname(socket, generic, &size) != 0) return system_error("getsockname");
    port = ntohs(address.sin_port);
    return {};
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_of(int rank, int ranks, const Listener& listener) {
  std::vector<std::string> variables;
  for (char** it = environ; *it != nullptr; ++it) variables.emplace_back(*it);
  const auto set = [&](const char* name, const std::string& value) {
    variables.push_back(std::string(name) + "=" + value);
  };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks));
  set("LOCAL_RANK", std::to_string(rank));
  set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(listener.port));
  set(kStarted, "1");
  if (rank == 0) set(kListener, std::to_string(listener.socket));
  return variables;
}

// In a process group of its own: a terminal's Ctrl-C reaches this process alone.
int start(std::vector<std::string> words, std::vector<std::string> variables, int listener,
          pid_t& process) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // The same number: what closed it there does not any more.
  if (listener >= 0) posix_spawn_file_actions_adddup2(&actions, listener, listener);
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
  const int failed = posix_spawn(&process, "/proc/self/exe", &actions, &attributes,
                                 pointers(words).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

int exit_code_of_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Ends with all of them. The first code that is not 0 counts, and the first rank's before others.
int wait_for_all(std::vector<pid_t> processes) {
  const Interrupt interrupt;
  bool told = false;
  int first_code = 0;
  int other_code = 0;
  const auto runs = [](pid_t process) { return process > 0; };
  while (std::any_of(processes.begin(), processes.end(), runs)) {
    if (interrupt.requested() && !std::exchange(told, true) && processes.front() > 0)
      kill(processes.front(), SIGTERM);
    for (pid_t& process : processes) {
      int status = 0;
      if (process <= 0 || waitpid(process, &status, WNOHANG) != process) continue;
      const int code = exit_code_of_status(status);
      (&process == processes.data() ? first_code : other_code) = code;
      process = 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return first_code != 0 ? first_code : std::min(other_code, 1);
}

}  // namespace

Result<std::vector<std::string>> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (all.empty()) return Error(ErrorCode::kIo, "/proc/self/cmdline cannot be read");
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    words.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Result<int> run_ranks(const std::vector<std::string>& words, int ranks) {
  Listener listener;
  SLUICE_RETURN_IF_ERROR(listener.open());
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t process = 0;
    const int failed = start(words, environment_of(rank, ranks, listener),
                             rank == 0 ? listener.socket : -1, process);
    if (failed != 0) {
      for (const pid_t started : processes) kill(started, SIGKILL);
      wait_for_all(processes);
      return Error(ErrorCode::kNotFound,
                   "rank " + std::to_string(rank) + " cannot be started: " + std::strerror(failed));
    }
    processes.push_back(process);
  }
  return wait_for_all(std::move(processes));
}

int begin_as_rank() {
  if (std::getenv(kStarted) == nullptr) return -1;  // NOLINT(concurrency-mt-unsafe): at the start
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const char* const named = std::getenv(kListener);  // NOLINT(concurrency-mt-unsafe): likewise
  if (named == nullptr) return -1;
  const std::string_view text(named);
  int socket = -1;
  std::from_chars(text.data(), text.data() + text.size(), socket);
  return socket;
}

}  // namespace sluice::tools
