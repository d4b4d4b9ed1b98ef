#include "tools/cli/start_ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/mount_table.h"
#include "aio/text.h"
#include "aio/units.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"
#include "engine/device/gpu.h"
#include "tools/cli/child_process.h"
#include "tools/cli/option_checks.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

constexpr const char* kListener = "SLUICE_LISTENER";     // a descriptor, for the first rank
constexpr const char* kStartedAs = "SLUICE_STARTED_AS";  // one of the following
constexpr const char* kRank = "rank";                    // its standard input ends with its starter
constexpr const char* kHost = "host";                    // starts the ranks of its host

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): at the start
  return value == nullptr ? "" : value;
}

// For this process and those that it starts.
void set_variable(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): at the start
}

// A rank, or the process that starts another host's ranks.
struct Child {
  std::string name;
  bool is_rank = true;
  std::unique_ptr<ChildProcess> process;
  bool has_ended = false;
};

// Reports the end of a rank that could not report it itself. One write, since the other ranks write
// to the same terminal.
void report_end(const Child& child, int saved_code) {
  const std::string ending = child.process->ending();
  if (child.is_rank ? ending.starts_with("by signal") : child.process->exit_code() != saved_code)
    std::cerr << (child.name + (child.is_rank ? " was ended " : ": its ranks ended ") + ending +
                  "\n");
}

// `started`: an error ends the children that were already started.
Result<int> wait_for_all(std::vector<Child> children, Status started, int saved_code) {
  if (!started.ok()) {
    for (const Child& child : children) child.process->stop(0);
    return std::move(started).error();
  }
  using Clock = std::chrono::steady_clock;
  const Interrupt interrupt;
  bool told = false;
  // After one rank fails, the others notice it within seconds, unless they still wait for all ranks
  // to connect. Such ranks are asked to end, and finally killed.
  std::optional<Clock::time_point> due_at;
  bool has_asked = false;
  int first_code = 0;
  int other_code = 0;
  for (std::size_t left = children.size(); left > 0;
       std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    // Unchanged, since a scheduler's warning must not count as a stop.
    if (interrupt.requested() && !std::exchange(told, true))
      children.front().process->send_signal(interrupt.first_signal());
    if (due_at && Clock::now() >= *due_at) {
      due_at = Clock::now() + std::chrono::minutes(1);
      const int signal = std::exchange(has_asked, true) ? SIGKILL : SIGTERM;
      for (const Child& child : children) child.process->send_signal(signal);
    }
    for (Child& child : children) {
      if (child.has_ended || child.process->runs()) continue;
      child.has_ended = true;
      --left;
      const int code = child.process->exit_code();
      if (code != 0 && code != saved_code && !due_at)
        due_at = Clock::now() + std::chrono::seconds(5);
      if (code == 0 || has_asked) continue;
      report_end(child, saved_code);
      int& counts = &child == children.data() ? first_code : other_code;
      if (counts == 0) counts = code;
    }
  }
  return first_code != 0 ? first_code : std::min(other_code, 1);
}

// kOutOfMemory if the bare processes of that many ranks do not fit into this machine's memory.
Status check_memory(int ranks) {
  constexpr std::uint64_t kOfARank = 256 * kMiB;  // LibTorch and some overhead
  const std::uint64_t available = aio::available_ram_bytes();
  const std::uint64_t fit = available / kOfARank;
  if (available == 0 || static_cast<std::uint64_t>(ranks) <= fit) return {};
  return Error(ErrorCode::kOutOfMemory,
               counted(ranks, "rank") + " on this machine, which has " + format_bytes(available) +
                   " of free memory within the limits of its control groups: each needs " +
                   format_bytes(kOfARank) + " before it reads any data. Start at most " +
                   std::to_string(fit) + " here, or free or allow more memory");
}

// Checks this machine's GPUs before ranks are started for them.
Status check_gpus(int wanted) {
  if (!engine::has_cuda_code()) return engine::no_cuda();
  const int there = engine::gpu_count();
  if (wanted <= there) return {};
  return engine::wrong("--gpus " + std::to_string(wanted) + ", but this process sees " +
                       counted(there, "GPU") +
                       " (CUDA_VISIBLE_DEVICES): use at most that many, or --ranks with "
                       "run.device \"cpu\"");
}

// The variables of one rank, or of the process that starts a host's ranks.
engine::Environment variables_of(const engine::Launch& launch, int local, const char* started_as) {
  return {{"RANK", std::to_string(launch.context.rank + local)},
          {"WORLD_SIZE", std::to_string(launch.context.world)},
          {"LOCAL_RANK", std::to_string(local)},
          {"LOCAL_WORLD_SIZE", std::to_string(launch.context.local_world)},
          {"MASTER_ADDR", launch.master_address},
          {"MASTER_PORT", std::to_string(launch.master_port)},
          {"SLUICE_JOB", launch.job},
          // In case a launcher has started this process: the port does not belong to its store.
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {kStartedAs, started_as}};
}

// The command line of this process, for another path of the program.
std::vector<std::string> own_words(const std::string& program) {
  std::istringstream line(aio::read_text("/proc/self/cmdline"));
  std::vector<std::string> words = {program};
  std::string word;
  std::getline(line, word, '\0');
  while (std::getline(line, word, '\0')) words.push_back(word);
  return words;
}

void add_variable(const std::string& name, const std::string& value, std::string& line) {
  line.append(" ").append(shell_word(std::string(name).append("=").append(value)));
}

// The words after `shell` and the host: a command line for that host's shell.
std::string remote_line(const engine::Launch& launch) {
  std::string line = "cd " + shell_word(std::filesystem::current_path().string()) + " && exec env";
  for (const auto& [name, value] : engine::own_environment()) {
    const bool is_sent = name.starts_with("NCCL_") || name.starts_with("OMP_") || name == "PATH" ||
                         name == "LD_LIBRARY_PATH";
    if (is_sent && name != "NCCL_HOSTID")  // which belongs to this host
      add_variable(name, value, line);
  }
  for (const auto& [name, value] : variables_of(launch, 0, kHost)) add_variable(name, value, line);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const std::string& word : own_words(program)) line += " " + shell_word(word);
  return line;
}

// The other hosts' users can read command lines and environments, but not standard input.
Status start_host(const std::string& shell, const std::string& host, const engine::Launch& launch,
                  std::vector<Child>& children) {
  std::istringstream stream(shell);
  std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  if (words.empty()) return engine::wrong("the command of --ssh is empty");
  words.insert(words.end(), {host, remote_line(launch)});
  const std::string name = "host " + host;
  auto started = ChildProcess::start(std::move(words), {.output = -1, .own_group = true});
  if (!started.ok()) return std::move(started).error().with_context(name);
  (*started)->tell(launch.secret);
  (*started)->end_input();
  children.push_back({.name = name, .is_rank = false, .process = *std::move(started)});
  return {};
}

// Starts the ranks of this host, where the first one has the rank of `launch`, before the others in
// `children`.
Status start_local(const engine::Launch& launch, engine::FileDescriptor listener,
                   std::vector<Child>& children) {
  const std::vector<std::string> words = own_words("/proc/self/exe");
  set_variable("SLUICE_SECRET", launch.secret);
  if (listener.is_open()) fcntl(listener.get(), F_SETFD, 0);  // not closed on exec
  for (int local = 0; local < launch.context.local_world; ++local) {
    for (const auto& [name, value] : variables_of(launch, local, kRank)) set_variable(name, value);
    set_variable(kListener, std::to_string(listener.get()));
    const std::string name = "rank " + std::to_string(launch.context.rank + local);
    auto started = ChildProcess::start(words, {.output = -1, .own_group = true});
    if (!started.ok()) return std::move(started).error().with_context(name);
    children.insert(children.begin() + local, Child{.name = name, .process = *std::move(started)});
    listener.close();
  }
  return {};
}

bool is_this_host(std::string_view host) {
  std::array<char, 256> own{};
  if (gethostname(own.data(), own.size() - 1) != 0) own = {};
  const auto without_domain = [](std::string_view name) { return name.substr(0, name.find('.')); };
  return engine::is_loopback(host) || without_domain(host) == without_domain(own.data());
}

Status check_hosts(const std::vector<engine::HostSlots>& hosts) {
  const std::string first = hosts.front().address();
  if (!is_this_host(first))
    return engine::wrong("the first host of the hostfile is " + engine::quoted(first) +
                         ", which is not this host: start the run there, or put this host first");
  if (hosts.size() > 1 && engine::is_loopback(first))
    return engine::wrong("the first host of the hostfile is " + first +
                         ", which is a different machine for each host: write the name by which "
                         "the others reach it");
  return {};
}

// Starts one rank per slot; the first host is this one.
Result<int> run_hosts(const std::vector<engine::HostSlots>& hosts, const RankOptions& options,
                      int saved_code) {
  SLUICE_RETURN_IF_ERROR(check_memory(hosts.front().slots));
  engine::Launch launch{.context = {.world = 0},
                        .master_address = hosts.front().address(),
                        .master_port = static_cast<std::uint16_t>(options.master_port),
                        .job = engine::new_secret().substr(0, 16),
                        .secret = engine::new_secret()};
  for (const engine::HostSlots& host : hosts) launch.context.world += host.slots;
  engine::FileDescriptor listener;
  if (hosts.size() == 1) {
    launch.master_address = "127.0.0.1";
    SLUICE_ASSIGN_OR_RETURN(listener,
                            engine::listen_at(launch.master_address, 0, engine::Reach::kThisHost));
    launch.master_port = engine::port_of(listener);
  }
  std::vector<Child> children;
  Status started;
  launch.context.rank = launch.context.world;
  for (std::size_t i = hosts.size(); i-- > 1 && started.ok();) {
    launch.context.local_world = hosts[i].slots;
    launch.context.rank -= hosts[i].slots;
    started = start_host(options.shell, hosts[i].host, launch, children);
  }
  launch.context.local_world = hosts.front().slots;
  launch.context.rank = 0;
  if (started.ok()) started = start_local(launch, std::move(listener), children);
  return wait_for_all(std::move(children), std::move(started), saved_code);
}

Result<std::vector<engine::HostSlots>> read_hostfile(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return engine::wrong("the hostfile " + path + " is a folder");
  if (access(path.c_str(), R_OK) != 0)
    return Error(ErrorCode::kNotFound, "the hostfile " + path + " cannot be read");
  auto hosts = engine::parse_hostfile(aio::read_text(path));
  if (!hosts.ok()) return std::move(hosts).error().with_context(path);
  SLUICE_RETURN_IF_ERROR(check_hosts(*hosts));
  return hosts;
}

// In a process that run_hosts() has started on another host, with the secret on standard input.
Result<int> run_this_host(engine::Launch launch, int saved_code) {
  constexpr std::size_t kMostBytes = 256;
  char next = 0;
  launch.secret.clear();  // another one of this host's environment
  while (launch.secret.size() < kMostBytes && read(STDIN_FILENO, &next, 1) == 1 && next != '\n')
    launch.secret += next;
  if (next != '\n' || launch.secret.empty())
    return engine::wrong(
        "the run's secret did not arrive on standard input: the command of --ssh must pass it on, "
        "as ssh does (docker exec -i, kubectl exec -i)");
  SLUICE_RETURN_IF_ERROR(check_memory(launch.context.local_world));
  std::vector<Child> children;
  Status started = start_local(launch, {}, children);
  return wait_for_all(std::move(children), std::move(started), saved_code);
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  auto* const ranks =
      command
          .add_option("--ranks", options.ranks,
                      "Starts this many ranks on this machine, which share its cores, memory and "
                      "drives; torchrun --no-python, mpirun and srun can start ranks too")
          ->type_name("N")
          ->check(at_least(1));
  auto* const gpus = command
                         .add_option("--gpus", options.gpus,
                                     "Trains on this many GPUs of this machine, with one rank each")
                         ->type_name("N")
                         ->check(at_least(1))
                         ->excludes(ranks);
  auto* const hostfile =
      command
          .add_option("--hostfile", options.hostfile,
                      "Starts ranks on several hosts by ssh: a DeepSpeed hostfile with lines 'HOST "
                      "slots=N', this host first. All hosts need the run's folder, the data and "
                      "this program at the same paths")
          ->type_name("FILE")
          ->excludes(ranks)
          ->excludes(gpus);
  command
      .add_option(
          "--ssh", options.shell,
          "Command that reaches a host; it gets the host and a shell command line, and must "
          "pass standard input on [ssh -o BatchMode=yes]")
      ->type_name("COMMAND")
      ->needs(hostfile);
  command
      .add_option("--master-port", options.master_port,
                  "Port at which the first rank waits for the others [29500]")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535))
      ->needs(hostfile);
}

void prefer_asked_ranks(const RankOptions& options, engine::Environment& environment) {
  if (!options.are_wanted() || is_started_rank()) return;
  // srun sets these for each task that it starts.
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (environment.contains(name)) return;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    environment.erase(name);
    unsetenv(name);  // NOLINT(concurrency-mt-unsafe): at the start
  }
}

Result<std::optional<int>> start_ranks(const RankOptions& options, engine::Launch launch,
                                       int saved_code) {
  if (is_started_rank()) return std::optional<int>();
  const auto ended_with = [](Result<int> code) -> Result<std::optional<int>> {
    if (!code.ok()) return std::move(code).error();
    return std::optional<int>(*code);
  };
  if (variable(kStartedAs) == kHost)
    return ended_with(run_this_host(std::move(launch), saved_code));
  const int ranks = std::max(options.ranks, options.gpus);
  // A launcher of a single task leaves starting the ranks to that task.
  if (launch.context.world > 1) {
    if (options.are_wanted() && ranks != launch.context.world)
      return engine::wrong(
          (ranks > 0 ? std::to_string(ranks) + " ranks are" : "A hostfile is") +
          " wanted, but a launcher has started " + std::to_string(launch.context.world) +
          ": leave --gpus, --ranks and --hostfile out, or unset its variables (RANK and "
          "WORLD_SIZE, or SLURM_STEP_ID) to start them here");
    return std::optional<int>();
  }
  if (options.gpus > 0) SLUICE_RETURN_IF_ERROR(check_gpus(options.gpus));
  std::vector<engine::HostSlots> hosts{{.host = "localhost", .slots = ranks}};
  if (!options.hostfile.empty()) {
    SLUICE_ASSIGN_OR_RETURN(hosts, read_hostfile(options.hostfile));
  } else if (ranks < 2) {
    return std::optional<int>();
  }
  return ended_with(run_hosts(hosts, options, saved_code));
}

bool is_started_rank() { return variable(kStartedAs) == kRank; }

int begin_as_rank(const engine::RankContext& context) {
  if (context.world > 1 && context.device > 0) {
    constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
    std::istringstream names{std::string(variable(kVisible))};
    std::string own = std::to_string(context.device);
    for (int number = 0; !names.str().empty() && number <= context.device; ++number)
      if (!std::getline(names, own, ',')) own.clear();
    set_variable(kVisible, own);
  }
  if (!is_started_rank()) return -1;
  std::thread([] {
    char none = 0;
    while (read(STDIN_FILENO, &none, 1) < 0 && errno == EINTR) {
    }
    stop_as_by_signal();
  }).detach();
  return std::atoi(std::string(variable(kListener)).c_str());
}

}  // namespace sluice::tools
