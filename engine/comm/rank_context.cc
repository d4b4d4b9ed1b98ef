#include "engine/comm/rank_context.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/text.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/mpi_communicator.h"
#include "engine/comm/tcp_communicator.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace sluice::engine {
namespace {

// A launcher's names for the four numbers.
struct Names {
  Launcher launcher;
  std::string title;
  std::vector<std::string> numbers;       // rank, world, local rank
  std::vector<std::string> local_worlds;  // of these, the first that is set
};

// In the order in which they are tried.
const std::vector<Names>& all_names() {
  const std::string mpi = "OMPI_COMM_WORLD_";
  static const std::vector<Names> all = {
      {Launcher::kTorchrun,
       "torchrun",
       {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
       {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}},  // the second is the name of DeepSpeed's launcher
      {Launcher::kOpenMpi,
       "mpirun",
       {mpi + "RANK", mpi + "SIZE", mpi + "LOCAL_RANK"},
       {mpi + "LOCAL_SIZE"}},
      {Launcher::kSlurm,
       "srun",
       {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
       {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}},
      {Launcher::kMpich,
       "mpiexec",
       {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
       {"MPI_LOCALNRANKS"}}};
  return all;
}

const std::string* find(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

Result<int> number(const Environment& environment, const std::string& name, int most) {
  const std::string* const text = find(environment, name);
  if (text == nullptr) return wrong(name + " is not set");
  const std::optional<int> value = whole_number(*text, most);
  if (value) return *value;
  return wrong(name + " is " + engine::quoted(*text) + "; it must be a whole number from 0 to " +
               std::to_string(most));
}

std::string listed(std::vector<std::string> names, std::string_view verb = "") {
  std::string last = names.back();
  names.pop_back();
  if (!names.empty()) last = joined(names, ", ") + " and " + last;
  return verb.empty() ? last : last + (names.empty() ? " is " : " are ") + std::string(verb);
}

// `hint`: an alternative for the user.
Error half_set(const Names& names, const std::vector<std::string>& there,
               const std::vector<std::string>& missing, const std::string& hint = "") {
  return wrong("incomplete " + names.title + " environment: " + listed(there, "set") + ", and " +
               listed(missing, "not") + ". " + hint + "Start every rank with " + names.title +
               ", or unset " +
               (names.launcher == Launcher::kSlurm ? "SLURM_STEP_ID" : listed(there)) +
               " to run one process");
}

// `names` and `values`: rank, world, local rank, local world.
Status check_numbers(const std::vector<std::string>& names, const std::array<int*, 4>& values) {
  for (const std::size_t i : {1U, 3U})
    if (*values[i] < 1) return wrong(names[i] + " is 0, but a run has at least one rank");
  struct Bound {
    std::size_t number;
    std::size_t limit;
    bool may_be_equal;
  };
  for (const auto& [i, limit, may_be_equal] :
       {Bound{0, 1, false}, Bound{2, 3, false}, Bound{3, 1, true}, Bound{2, 0, true}})
    if (*values[i] > *values[limit] || (*values[i] == *values[limit] && !may_be_equal))
      return wrong(names[i] + " is " + std::to_string(*values[i]) + ", which is " +
                   (may_be_equal ? "more than " : "not below ") + names[limit] + ", " +
                   std::to_string(*values[limit]));
  return {};
}

// Whether srun started this process. A batch script and a shell of salloc also have the number of
// tasks, and the script even a task number, although no task was started. Their step numbers are
// 2^32 - 16 and above, or missing.
bool is_task_of_slurm(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"})
    if (const std::string* const step = find(environment, name))
      return whole_number(*step, 1'000'000'000).has_value();
  return false;
}

// The number of Slurm's tasks on this task's node, from the variable `name`.
Result<int> slurm_local_world(const Environment& environment, const std::string& name, int world) {
  if (name == "SLURM_NTASKS_PER_NODE") return number(environment, name, kMaxRanks);
  const std::string& text = *find(environment, name);
  auto counts = parse_tasks_per_node(text);
  if (!counts.ok()) return std::move(counts).error().with_context(name);
  const std::int64_t tasks = std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
  if (tasks != world)
    return wrong(name + " is " + engine::quoted(text) + ", which makes " + std::to_string(tasks) +
                 " tasks, and SLURM_NTASKS is " + std::to_string(world) +
                 ": start the run by srun");
  if (std::equal(counts->begin() + 1, counts->end(), counts->begin())) return counts->front();
  const int last = static_cast<int>(counts->size()) - 1;
  SLUICE_ASSIGN_OR_RETURN(const int node, number(environment, "SLURM_NODEID", last));
  return (*counts)[static_cast<std::size_t>(node)];
}

// kNone if this launcher has not started the process.
Result<Launch> read_numbers(const Environment& environment, const Names& names) {
  const auto is_set = [&](const std::string& name) { return find(environment, name) != nullptr; };
  std::vector<std::string> all = names.numbers;
  if (std::none_of(all.begin(), all.end(), is_set)) return Launch();
  if (names.launcher == Launcher::kSlurm && !is_task_of_slurm(environment)) return Launch();
  const auto found = std::find_if(names.local_worlds.begin(), names.local_worlds.end(), is_set);
  all.push_back(found == names.local_worlds.end() ? names.local_worlds.front() : *found);

  const auto first_missing = std::stable_partition(all.begin(), all.end(), is_set);
  const std::vector<std::string> there(all.begin(), first_missing);
  const std::vector<std::string> missing(first_missing, all.end());
  // Kubeflow's PyTorchJob starts one process in each pod, and gives no local numbers.
  const bool is_alone_on_host = names.launcher == Launcher::kTorchrun && missing.size() == 2 &&
                                missing.front() == "LOCAL_RANK";
  if (!missing.empty() && !is_alone_on_host) return half_set(names, there, missing);

  Launch launch{.launcher = names.launcher};
  RankContext& context = launch.context;
  const std::array<int*, 4> values = {&context.rank, &context.world, &context.local_rank,
                                      &context.local_world};
  for (std::size_t i = 0; i < there.size(); ++i) {
    const bool is_list = names.launcher == Launcher::kSlurm && i == 3;
    SLUICE_ASSIGN_OR_RETURN(*values[i],
                            is_list ? slurm_local_world(environment, there[i], context.world)
                                    : number(environment, there[i], kMaxRanks));
  }
  SLUICE_RETURN_IF_ERROR(check_numbers(all, values));
  return launch;
}

// What Slurm says of rank 0's address and of the job.
Status read_slurm_job(const Environment& environment, Launch& launch) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const std::string* const list = find(environment, name);
    if (list == nullptr) continue;
    auto nodes = parse_node_list(*list);
    if (!nodes.ok()) return std::move(nodes).error().with_context(name);
    launch.master_address = nodes->front();
    break;
  }
  if (const std::string* const job = find(environment, "SLURM_JOB_ID")) {
    // Two jobs that share a host should not use the same port.
    SLUICE_ASSIGN_OR_RETURN(const int id, number(environment, "SLURM_JOB_ID", 2'000'000'000));
    launch.master_port = static_cast<std::uint16_t>(15'000 + id % 15'000);
    launch.job = "Slurm " + *job;
  }
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"})
    if (const std::string* const step = find(environment, name)) launch.job += " step " + *step;
  return {};
}

// Rank 0's address, if the environment has it.
Status read_master(const Environment& environment, Launch& launch) {
  if (const std::string* const address = find(environment, "MASTER_ADDR")) {
    const auto stray = [](unsigned char c) { return c <= ' ' || c > '~'; };
    if (address->empty() || address->size() > 255 ||
        std::any_of(address->begin(), address->end(), stray))
      return wrong("MASTER_ADDR is " + engine::quoted(*address) +
                   "; it must be a host's name or address");
    launch.master_address = *address;
  }
  const bool has_port = find(environment, "MASTER_PORT") != nullptr;
  if (has_port) {
    SLUICE_ASSIGN_OR_RETURN(const int port, number(environment, "MASTER_PORT", 65535));
    if (port == 0) return wrong("MASTER_PORT is 0; it must be a port from 1 to 65535");
    launch.master_port = static_cast<std::uint16_t>(port);
  }
  if (launch.launcher != Launcher::kTorchrun) return {};
  // torchrun's own store uses that port.
  const std::string* const agent = find(environment, "TORCHELASTIC_USE_AGENT_STORE");
  if (agent != nullptr && *agent == "True")
    launch.master_port = static_cast<std::uint16_t>(
        launch.master_port < 65535 ? launch.master_port + 1 : launch.master_port - 1);
  // A launcher that sets the local ranks also sets the port.
  const bool has_local = find(environment, "LOCAL_RANK") != nullptr;
  std::vector<std::string> missing;
  if (launch.master_address.empty()) missing.emplace_back("MASTER_ADDR");
  if (has_local && !has_port) missing.emplace_back("MASTER_PORT");
  if (launch.context.world == 1 || missing.empty()) return {};
  return half_set(all_names().front(), {"RANK", "WORLD_SIZE"}, missing,
                  has_local ? ""
                            : "Set it to rank 0's host, and LOCAL_RANK and LOCAL_WORLD_SIZE where "
                              "several ranks share a host. ");
}

// What distinguishes this run's ranks from another run's at the same port, and from strangers.
Status read_trust(const Environment& environment, Launch& launch) {
  if (launch.launcher == Launcher::kTorchrun)
    for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
      if (const std::string* const text = find(environment, name)) launch.job += "/" + *text;
  if (const std::string* const own = find(environment, "SLUICE_JOB")) launch.job = *own;
  for (const auto& [name, value] : {std::pair("SLUICE_SECRET", &launch.secret),
                                    std::pair("SLUICE_SECRET_FILE", &launch.secret_file),
                                    std::pair("SLUICE_LISTEN", &launch.listen_address)}) {
    const std::string* const text = find(environment, name);
    if (text == nullptr) continue;
    if (text->empty()) return wrong(std::string(name) + " is empty: give it a value, or unset it");
    *value = *text;
  }
  if (!launch.secret.empty()) launch.secret_file.clear();
  return {};
}

// Which of the visible GPUs is this process's own.
int choose_device(const Environment& environment, int local_rank) {
  const std::string* const visible = find(environment, "CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return local_rank;
  if (visible->empty() || visible->front() == '-') return -1;
  // A launcher that gives each rank its own GPU makes only that one visible.
  return visible->find(',') == std::string::npos ? 0 : local_rank;
}

std::string rank_of_world(const Launch& launch) {
  return " says rank " + std::to_string(launch.context.rank) + " of " +
         std::to_string(launch.context.world);
}

Result<std::string> read_secret(const std::string& path) {
  constexpr std::size_t kMostBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad())
    return Error(ErrorCode::kNotFound, "SLUICE_SECRET_FILE, " + path + ", cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!text.empty() && text.size() <= kMostBytes) return text;
  return wrong("SLUICE_SECRET_FILE, " + path + ", " +
               (text.empty() ? "is empty" : "is larger than 4 KiB") +
               ": write random text into it, such as the output of `openssl rand -hex 32`");
}

}  // namespace

Environment own_environment() {
  Environment variables;
  for (char** it = environ; *it != nullptr; ++it) {
    const std::string_view variable(*it);
    const std::size_t equals = variable.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return variables;
}

Result<Launch> read_launch(const Environment& environment) {
  Launch chosen;
  std::string title;
  for (const Names& names : all_names()) {
    const bool is_chosen = chosen.launcher != Launcher::kNone;
    // Slurm's own PMI sets two of MPICH's variables. mpirun starts its tasks inside a Slurm
    // allocation, whose variables are the node's.
    if (is_chosen && (names.launcher == Launcher::kMpich || chosen.launcher == Launcher::kOpenMpi))
      break;
    SLUICE_ASSIGN_OR_RETURN(Launch read, read_numbers(environment, names));
    if (!is_chosen) {
      chosen = std::move(read);
      title = names.title;
      // torchrun itself is started once per host, by some other launcher.
      if (chosen.launcher == Launcher::kTorchrun && environment.contains("TORCHELASTIC_RUN_ID"))
        break;
      continue;
    }
    // One launcher's only task may have started the other launcher.
    if (read.context.world > 1 &&
        (chosen.context.rank != read.context.rank || chosen.context.world != read.context.world))
      return wrong("the environment has two launchers that disagree: " + title +
                   rank_of_world(chosen) + " and " + names.title + rank_of_world(read) +
                   ". Unset the variables of the one that did not start this run");
  }
  if (chosen.launcher == Launcher::kSlurm)
    SLUICE_RETURN_IF_ERROR(read_slurm_job(environment, chosen));
  if (chosen.launcher != Launcher::kNone) {
    SLUICE_RETURN_IF_ERROR(read_master(environment, chosen));
    SLUICE_RETURN_IF_ERROR(read_trust(environment, chosen));
  } else if (environment.contains("SLURM_JOB_ID")) {
    const std::string* const tasks = find(environment, "SLURM_NTASKS");
    chosen.tasks_beside = tasks == nullptr ? 0 : whole_number(*tasks, kMaxRanks).value_or(0);
  }
  chosen.context.device = choose_device(environment, chosen.context.local_rank);
  return chosen;
}

Result<std::unique_ptr<Communicator>> meet_ranks(const Launch& launch, int listener) {
  if (launch.tasks_beside > 1)
    log::warning("this Slurm job has " + std::to_string(launch.tasks_beside) +
                 " tasks, but this process is not one of them: it trains alone. Start the command "
                 "with srun to get a rank in each task");
  if (launch.context.world == 1) return make_single_process_communicator();
  // Another rank may be busy as long as a checkpoint takes; a dead rank is detected immediately.
  constexpr std::chrono::hours kMostPatience(6);
  if (launch.master_address.empty()) {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    const auto beside = program.parent_path() / "libsluice_mpi.so";
    MpiOptions options{.collective_timeout = kMostPatience};
    if (std::filesystem::exists(beside, error)) options.plugin = beside.string();
    return make_mpi_communicator(options);
  }
  TcpOptions options;
  // The same host identity as NCCL uses, which would otherwise see other hosts than Sluice does.
  const char* const host =
      std::getenv("NCCL_HOSTID");  // NOLINT(concurrency-mt-unsafe): at the start
  if (host != nullptr) options.host = host;
  options.collective_timeout = kMostPatience;
  options.context = launch.context;
  options.master_address = launch.master_address;
  options.master_port = launch.master_port;
  options.listening_socket = listener;
  options.job = launch.job;
  options.secret = launch.secret;
  if (!launch.secret_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(options.secret, read_secret(launch.secret_file));
  }
  options.listen_address = launch.listen_address;
  const std::string start = "this is one of " + std::to_string(launch.context.world) +
                            " processes; start them all, or unset ";
  if (launch.launcher == Launcher::kSlurm)
    options.how_to_start = "Slurm's variables say that " + start + "SLURM_STEP_ID to run one";
  if (launch.launcher == Launcher::kTorchrun)
    options.how_to_start = "RANK and WORLD_SIZE say that " + start + "both to run one";
  return make_tcp_communicator(options);
}

}  // namespace sluice::engine
