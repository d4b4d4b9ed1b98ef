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

#include "aio/machine_info.h"
#include "aio/mount_table.h"
#include "aio/text.h"
#include "aio/units.h"
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
  std::unique_ptr<ChildProcess> process = {};
  bool has_ended = false;
};

Status start_child(Child child, std::vector<std::string> words, std::vector<Child>& children) {
  auto started = ChildProcess::start(std::move(words), {.output = -1, .own_group = true});
  if (!started.ok()) return std::move(started).error().with_context(child.name);
  child.process = *std::move(started);
  children.push_back(std::move(child));
  return {};
}

// `started`: an error ends the children that were already started.
Result<std::optional<int>> wait_for_all(std::vector<Child> children, Status started,
                                        int saved_code) {
  if (!started.ok()) {
    for (const Child& child : children) child.process->stop(0);
    return std::move(started).error();
  }
  using Clock = std::chrono::steady_clock;
  const Interrupt interrupt;
  bool told = false;
  // After one rank fails, the others notice it within seconds, unless they still wait for all ranks
  // to connect. Such ranks are asked to end, and finally killed.
  Clock::time_point due_at = Clock::time_point::max();
  bool has_asked = false;
  std::array<int, 2> codes{};  // of the first rank, of the others
  for (std::size_t left = children.size(); left > 0;
       std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    // Unchanged, since a scheduler's warning must not count as a stop.
    if (interrupt.requested() && !std::exchange(told, true))
      children.front().process->send_signal(interrupt.first_signal());
    if (Clock::now() >= due_at) {
      due_at = Clock::now() + std::chrono::minutes(1);
      const int signal = std::exchange(has_asked, true) ? SIGKILL : SIGTERM;
      for (const Child& child : children) child.process->send_signal(signal);
    }
    for (Child& child : children) {
      if (child.has_ended || child.process->runs()) continue;
      child.has_ended = true;
      --left;
      const int code = child.process->exit_code();
      const bool is_failure = code != 0 && code != saved_code;
      if (is_failure) due_at = std::min(due_at, Clock::now() + std::chrono::seconds(5));
      if (code == 0 || has_asked) continue;
      // It could not report its end itself. One write, since the others write to the terminal too.
      const std::string ending = child.process->ending();
      if (child.is_rank ? ending.starts_with("by signal") : is_failure)
        std::cerr << child.name + (child.is_rank ? " was ended " : ": its ranks ended ") + ending +
                         "\n";
      int& counts = codes[&child == children.data() ? 0 : 1];
      if (counts == 0) counts = code;
    }
  }
  return std::optional<int>(codes[0] != 0 ? codes[0] : std::min(codes[1], 1));
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
  std::vector<std::string> words;
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  words.front() = program;
  return words;
}

// A line for another host's shell. It has no secret: the host's users can read command lines.
std::string remote_line(const engine::Launch& launch) {
  engine::Environment sent = variables_of(launch, 0, kHost);
  for (const auto& [name, value] : engine::own_environment())
    if (name.starts_with("OMP_") || name == "PATH" || name == "LD_LIBRARY_PATH" ||
        (name.starts_with("NCCL_") && name != "NCCL_HOSTID"))  // which belongs to this host
      sent.emplace(name, value);
  std::string line = "cd " + shell_word(std::filesystem::current_path().string()) + " && exec env";
  for (const auto& [name, value] : sent)
    line.append(" ").append(shell_word(std::string(name).append("=").append(value)));
  for (const std::string& word :
       own_words(std::filesystem::read_symlink("/proc/self/exe").string()))
    line += " " + shell_word(word);
  return line;
}

Status start_host(const std::string& shell, const std::string& host, const engine::Launch& launch,
                  std::vector<Child>& children) {
  std::istringstream stream(shell);
  std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  words.insert(words.end(), {host, remote_line(launch)});
  SLUICE_RETURN_IF_ERROR(
      start_child({.name = "host " + host, .is_rank = false}, std::move(words), children));
  children.back().process->tell(launch.secret);
  children.back().process->end_input();
  return {};
}

// Starts the ranks of this host, from that of `launch` on.
Status start_local(const engine::Launch& launch, engine::FileDescriptor listener,
                   std::vector<Child>& children) {
  set_variable("SLUICE_SECRET", launch.secret);
  if (listener.is_open()) fcntl(listener.get(), F_SETFD, 0);  // not closed on exec
  for (int local = 0; local < launch.context.local_world; ++local, listener.close()) {
    for (const auto& [name, value] : variables_of(launch, local, kRank)) set_variable(name, value);
    set_variable(kListener, std::to_string(listener.get()));
    SLUICE_RETURN_IF_ERROR(
        start_child({.name = "rank " + std::to_string(launch.context.rank + local)},
                    own_words("/proc/self/exe"), children));
  }
  return {};
}

// Starts one rank per slot; the first host is this one.
Result<std::optional<int>> run_hosts(const std::vector<engine::HostSlots>& hosts,
                                     const RankOptions& options, int saved_code) {
  SLUICE_RETURN_IF_ERROR(check_memory(hosts.front().slots));
  engine::Launch launch{.context = {.rank = hosts.front().slots, .world = 0},
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
  for (auto host = hosts.begin() + 1; host != hosts.end() && started.ok(); ++host) {
    launch.context.local_world = host->slots;
    started = start_host(options.shell, host->host, launch, children);
    launch.context.rank += host->slots;
  }
  launch.context.local_world = hosts.front().slots;
  launch.context.rank = 0;
  const auto others = static_cast<std::ptrdiff_t>(children.size());
  if (started.ok()) started = start_local(launch, std::move(listener), children);
  std::rotate(children.begin(), children.begin() + others, children.end());
  return wait_for_all(std::move(children), std::move(started), saved_code);
}

// In a process that run_hosts() has started on another host, with the secret on standard input.
Result<std::optional<int>> run_this_host(engine::Launch launch, int saved_code) {
  std::array<char, 256> secret{};
  std::cin.getline(secret.data(), secret.size());
  launch.secret = secret.data();  // not one of this host's environment
  if (!std::cin.good() || launch.secret.empty())
    return engine::wrong(
        "the run's secret did not arrive on standard input: the command of --ssh must pass it on, "
        "as ssh does (docker exec -i, kubectl exec -i)");
  SLUICE_RETURN_IF_ERROR(check_memory(launch.context.local_world));
  std::vector<Child> children;
  Status started = start_local(launch, {}, children);
  return wait_for_all(std::move(children), std::move(started), saved_code);
}

// What is wrong with a hostfile, or empty. The processes that are started do not need its hosts.
std::string read_hostfile(const std::string& path, std::vector<engine::HostSlots>& hosts) {
  if (!variable(kStartedAs).empty()) return {};
  std::string checked = path;
  if (std::string missing = CLI::ExistingFile(checked); !missing.empty()) return missing;
  auto read = engine::parse_hostfile(aio::read_text(path));
  if (!read.ok()) return read.error().message();
  hosts = *std::move(read);
  const std::string first = hosts.front().address();
  std::array<char, 256> own{};
  if (gethostname(own.data(), own.size() - 1) != 0) own = {};
  const auto without_domain = [](std::string_view name) {
    return engine::compared_host(name.substr(0, name.find('.')));
  };
  const bool is_loopback = engine::is_loopback(engine::compared_host(first));
  if (!is_loopback && without_domain(first) != without_domain(own.data()) &&
      !engine::is_own_address(first))
    return "the first host is " + engine::quoted(first) +
           ", which is not this host: start the run there, or put this host first";
  if (hosts.size() > 1 && is_loopback)
    return "the first host is " + first + ", which is a different machine for each host: write " +
           "the name by which the others reach it";
  return {};
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* type, const std::string& text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  auto* const ranks =
      add("--ranks", options.ranks, "N",
          "Starts this many ranks on this machine, which share its cores, memory and drives; "
          "torchrun --no-python, mpirun and srun can start ranks too");
  auto* const gpus = add("--gpus", options.gpus, "N",
                         "Trains on this many GPUs of this machine, with one rank each");
  auto* const hostfile =
      add("--hostfile", options.hostfile, "FILE",
          "Starts ranks on several hosts by ssh: a DeepSpeed hostfile with lines 'HOST slots=N', "
          "this host first. All hosts need the run's folder, the data and this program at the "
          "same paths");
  ranks->check(at_least(1));
  gpus->check(at_least(1))->excludes(ranks);
  hostfile->excludes(ranks)->excludes(gpus)->check(
      [&hosts = options.hosts](const std::string& path) { return read_hostfile(path, hosts); });
  add("--ssh", options.shell, "COMMAND",
      "Command that reaches a host; it gets the host and a shell command line, and must pass "
      "standard input on [ssh -o BatchMode=yes]")
      ->needs(hostfile)
      ->check([](const std::string& words) {
        return words.find_first_not_of(" \t\n") == std::string::npos ? "it is empty" : "";
      });
  add("--master-port", options.master_port, "PORT",
      "Port at which the first rank waits for the others [29500]")
      ->needs(hostfile)
      ->check(CLI::Range(1, 65535));
}

Result<std::optional<int>> start_ranks(const RankOptions& options, engine::Launch launch,
                                       int saved_code) {
  if (is_started_rank()) return std::optional<int>();
  if (variable(kStartedAs) == kHost) return run_this_host(std::move(launch), saved_code);
  const int ranks = std::max(options.ranks, options.gpus);
  // A launcher of a single task leaves starting the ranks to that task.
  if (launch.context.world > 1) {
    if (!options.are_wanted() || ranks == launch.context.world) return std::optional<int>();
    return engine::wrong("a launcher has started " + counted(launch.context.world, "rank") +
                         ": leave --gpus, --ranks and --hostfile out, or unset its variables " +
                         "(RANK and WORLD_SIZE, or SLURM_STEP_ID) to start them here");
  }
  if (options.gpus > 0) SLUICE_RETURN_IF_ERROR(check_gpus(options.gpus));
  if (!options.hosts.empty()) return run_hosts(options.hosts, options, saved_code);
  if (ranks < 2) return std::optional<int>();
  return run_hosts({{.host = "localhost", .slots = ranks}}, options, saved_code);
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
