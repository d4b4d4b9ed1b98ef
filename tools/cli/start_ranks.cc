#include "tools/cli/start_ranks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "aio/text.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/run_key.h"
#include "tools/cli/rank_process.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

constexpr const char* kListener = "SLUICE_LISTENER";  // a descriptor, for the first rank
constexpr const char* kStarter = "SLUICE_STARTER";    // for each rank: a pipe whose close ends it
constexpr const char* kHostRanks = "SLUICE_HOST_RANKS";  // from run_hosts(), for another host

Error system_error(const char* what) {
  return Error(ErrorCode::kIo, std::string(what) + ": " + std::strerror(errno));
}

std::string new_job() {
  std::random_device random;
  return std::to_string(random()) + std::to_string(random());
}

// A pipe that ties children to this process: a child has one end and sees the other close when this
// process ends, even if it looks only later. The kernel's parent-death signal has two drawbacks. It
// is lost if the parent ends before the rank asks for it. It also arrives more than once from a
// process with several threads, and a second SIGTERM means an immediate stop.
struct Lifeline {
  int held = -1;
  int handed = -1;

  Lifeline() = default;
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline() {
    if (held >= 0) close(held);
    if (handed >= 0) close(handed);
  }
  Status open() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe");
    handed = ends[0];
    held = ends[1];
    return {};
  }
};

// A free port of this machine, reserved until the first rank listens there.
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

// A pipe that holds one line, for a process on another host. Other users there can read command
// lines and environments, but not this.
struct InputLine {
  int reads = -1;

  InputLine() = default;
  InputLine(const InputLine&) = delete;
  InputLine& operator=(const InputLine&) = delete;
  ~InputLine() {
    if (reads >= 0) close(reads);
  }
  Status open(const std::string& line) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe");
    reads = ends[0];
    const std::string text = line + "\n";  // fits into a pipe's buffer
    const bool is_written =
        write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(ends[1]);
    return is_written ? Status() : system_error("write");
  }
};

Variables environment_of(const HostRanks& ranks, int local, const HandedDown& handed) {
  Variables variables;
  const auto set = [&](const char* name, const auto& value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>)
      variables.set(name, std::to_string(value));
    else
      variables.set(name, value);
  };
  set("RANK", ranks.first + local);
  set("WORLD_SIZE", ranks.world);
  set("LOCAL_RANK", local);
  set("LOCAL_WORLD_SIZE", ranks.count);
  set("MASTER_ADDR", ranks.master_address);
  set("MASTER_PORT", ranks.master_port);
  set("SLUICE_JOB", ranks.job);
  set("SLUICE_SECRET", ranks.secret);
  // In case a launcher has started this process: the port does not belong to that launcher's store.
  set("TORCHELASTIC_USE_AGENT_STORE", std::string("False"));
  set(kStarter, handed.lifeline);
  if (handed.listener >= 0) set(kListener, handed.listener);
  return variables;
}

// `handed`: its listener goes to the first rank.
Status start_local(std::vector<std::string> words, const HostRanks& ranks, HandedDown handed,
                   std::vector<Child>& children) {
  SLUICE_RETURN_IF_ERROR(check_memory(ranks.count));
  words.front() = "/proc/self/exe";
  for (int local = 0; local < ranks.count; ++local) {
    const int rank = ranks.first + local;
    pid_t process = 0;
    const int failed = start(words, environment_of(ranks, local, handed), handed, process);
    if (failed != 0) return not_started("rank " + std::to_string(rank), failed, children);
    children.push_back({.process = process, .host = {}, .rank = rank});
    handed.listener = -1;
  }
  return {};
}

// A host name without its domain.
std::string_view short_name(std::string_view host) { return host.substr(0, host.find('.')); }

bool is_this_host(std::string_view host) {
  std::array<char, 256> own{};
  if (gethostname(own.data(), own.size() - 1) != 0) own = {};
  return host == "localhost" || host == "127.0.0.1" || host == own.data() ||
         short_name(host) == short_name(own.data());
}

std::string text_of(const HostRanks& ranks) {
  return std::to_string(ranks.first) + ":" + std::to_string(ranks.count) + ":" +
         std::to_string(ranks.world) + ":" + std::to_string(ranks.master_port) + ":" +
         ranks.master_address + " " + ranks.job;
}

// The command line for another host's shell.
Result<std::string> remote_line(const std::vector<std::string>& words, const HostRanks& ranks) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) return Error(ErrorCode::kIo, "the current folder cannot be read: " + error.message());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return Error(ErrorCode::kIo, "/proc/self/exe cannot be read: " + error.message());
  std::string line = "cd " + shell_word(folder) + " && exec env";
  for (char** it = environ; *it != nullptr; ++it) {
    const std::string_view variable(*it);
    const auto begins = [&](std::string_view name) { return variable.starts_with(name); };
    if (begins("NCCL_HOSTID=")) continue;  // belongs to this host
    if (begins("NCCL_") || begins("OMP_") || begins("PATH=") || begins("LD_LIBRARY_PATH="))
      line += " " + shell_word(std::string(variable));
  }
  line += " " + shell_word(kHostRanks + ("=" + text_of(ranks))) + " " + shell_word(program);
  for (std::size_t i = 1; i < words.size(); ++i) line += " " + shell_word(words[i]);
  return line;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

Status check_hosts(const std::vector<engine::HostSlots>& hosts) {
  const std::string first = hosts.front().address();
  if (!is_this_host(first))
    return Error(ErrorCode::kInvalidArgument,
                 "the first host of the hostfile is " + engine::quoted(first) +
                     ", which is not this host: start the run there, or put this host first");
  const bool is_loopback = first == "localhost" || first == "127.0.0.1";
  if (hosts.size() > 1 && is_loopback)
    return Error(ErrorCode::kInvalidArgument, "the first host of the hostfile is " + first +
                                                  ", which is a different machine for each host: "
                                                  "write the name by which the others reach it");
  return {};
}

// Reads the run's secret, as InputLine sends it, and not one byte more.
Result<std::string> line_of_input() {
  constexpr std::size_t kMostBytes = 256;
  std::string line;
  char next = 0;
  while (line.size() < kMostBytes) {
    const ssize_t got = read(STDIN_FILENO, &next, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || next == '\n') break;
    line += next;
  }
  if (next == '\n' && !line.empty()) return line;
  return Error(ErrorCode::kInvalidArgument,
               "the run's secret did not arrive on standard input: the command of --ssh must pass "
               "it on, as ssh does (docker exec -i, kubectl exec -i)");
}

// The descriptor in an environment variable; -1: not set.
int descriptor_of(const char* variable) {
  const char* const named = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): at the start
  const std::string_view text(named == nullptr ? "" : named);
  int descriptor = -1;
  std::from_chars(text.data(), text.data() + text.size(), descriptor);
  return descriptor;
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

Result<int> run_ranks(const std::vector<std::string>& words, int ranks, int saved_code) {
  Listener listener;
  SLUICE_RETURN_IF_ERROR(listener.open());
  Lifeline lifeline;
  SLUICE_RETURN_IF_ERROR(lifeline.open());
  std::vector<Child> children;
  SLUICE_RETURN_IF_ERROR(start_local(words,
                                     {.first = 0,
                                      .count = ranks,
                                      .world = ranks,
                                      .master_address = "127.0.0.1",
                                      .master_port = listener.port,
                                      .job = new_job(),
                                      .secret = engine::new_secret()},
                                     {lifeline.handed, listener.socket}, children));
  return wait_for_all(std::move(children), saved_code);
}

Result<int> run_hosts(const std::vector<std::string>& words,
                      const std::vector<engine::HostSlots>& hosts, const RemoteStart& remote,
                      int saved_code) {
  SLUICE_RETURN_IF_ERROR(check_hosts(hosts));
  if (hosts.size() == 1) return run_ranks(words, hosts.front().slots, saved_code);
  const std::vector<std::string> shell = split(remote.shell);
  if (shell.empty()) return Error(ErrorCode::kInvalidArgument, "the command of --ssh is empty");
  HostRanks ranks{.master_address = hosts.front().address(),
                  .master_port = remote.master_port,
                  .job = new_job(),
                  .secret = engine::new_secret()};
  ranks.world =
      std::accumulate(hosts.begin(), hosts.end(), 0,
                      [](int sum, const engine::HostSlots& host) { return sum + host.slots; });
  Lifeline lifeline;
  SLUICE_RETURN_IF_ERROR(lifeline.open());
  std::vector<Child> children;
  for (const engine::HostSlots& host : hosts) {
    ranks.count = host.slots;
    if (ranks.first == 0) {
      SLUICE_RETURN_IF_ERROR(start_local(words, ranks, {.lifeline = lifeline.handed}, children));
    } else {
      std::vector<std::string> command = shell;
      command.push_back(host.host);
      SLUICE_ASSIGN_OR_RETURN(command.emplace_back(), remote_line(words, ranks));
      pid_t process = 0;
      InputLine secret;
      SLUICE_RETURN_IF_ERROR(secret.open(ranks.secret));
      const int failed = start(std::move(command), Variables(), {.input = secret.reads}, process);
      if (failed != 0)
        return not_started(shell.front() + ", for host " + host.host + ",", failed, children);
      children.push_back({.process = process, .host = host.host});
    }
    ranks.first += host.slots;
  }
  return wait_for_all(std::move(children), saved_code);
}

Result<std::optional<HostRanks>> ranks_of_this_host() {
  const char* const text = std::getenv(kHostRanks);  // NOLINT(concurrency-mt-unsafe): at the start
  if (text == nullptr) return std::optional<HostRanks>();
  HostRanks ranks;
  std::istringstream stream(text);
  const std::array<int*, 4> numbers = {&ranks.first, &ranks.count, &ranks.world,
                                       &ranks.master_port};
  bool is_good = true;
  for (int* const number : numbers) {
    char colon = 0;
    is_good = is_good && stream >> *number >> colon && colon == ':' && *number >= 0;
  }
  is_good = is_good && stream >> ranks.master_address >> ranks.job && ranks.count >= 1 &&
            ranks.world <= engine::kMaxRanks && ranks.first < ranks.world &&
            ranks.count <= ranks.world - ranks.first && ranks.master_port >= 1 &&
            ranks.master_port <= 65535;
  if (!is_good)
    return Error(ErrorCode::kInvalidArgument,
                 std::string(kHostRanks) + " is " + engine::quoted(text) +
                     ": only `sluice train --hostfile` sets it, for other hosts; unset it");
  SLUICE_ASSIGN_OR_RETURN(ranks.secret, line_of_input());
  return std::optional(ranks);
}

Result<int> run_host_ranks(const std::vector<std::string>& words, const HostRanks& ranks,
                           int saved_code) {
  unsetenv(kHostRanks);  // NOLINT(concurrency-mt-unsafe): at the start
  Lifeline lifeline;
  SLUICE_RETURN_IF_ERROR(lifeline.open());
  std::vector<Child> children;
  SLUICE_RETURN_IF_ERROR(start_local(words, ranks, {.lifeline = lifeline.handed}, children));
  return wait_for_all(std::move(children), saved_code);
}

bool is_started_rank() { return descriptor_of(kStarter) >= 0; }

int begin_as_rank() {
  const int lifeline = descriptor_of(kStarter);
  if (lifeline < 0) return -1;
  std::thread([lifeline] {
    char none = 0;
    while (read(lifeline, &none, 1) < 0 && errno == EINTR) {
    }
    stop_as_by_signal();
  }).detach();
  return descriptor_of(kListener);
}

}  // namespace sluice::tools
