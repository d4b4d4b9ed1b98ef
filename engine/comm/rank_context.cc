#include "engine/comm/rank_context.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/mpi_communicator.h"
#include "engine/comm/tcp_communicator.h"

namespace sluice::engine {
namespace {

struct Names {
  Launcher launcher;
  const char* title;
  // For rank, world, local rank and local world; two for the last: the first that is set counts.
  const char* numbers;
};

// In the order in which they are tried. LOCAL_SIZE is the name of DeepSpeed's launcher.
constexpr std::array<Names, 4> kLaunchers = {{
    {Launcher::kTorchrun, "torchrun", "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE"},
    {Launcher::kOpenMpi, "mpirun",
     "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kSlurm, "srun",
     "SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE"},
    {Launcher::kMpich, "mpiexec", "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"},
}};

// The first of these variables that is set; null: none is.
const Environment::value_type* first_set(const Environment& environment,
                                         std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (const auto found = environment.find(name); found != environment.end()) return &*found;
  return nullptr;
}

Result<int> number(const Environment& environment, const std::string& name, int most,
                   int least = 0) {
  const auto* const set = first_set(environment, {name});
  if (set == nullptr) return wrong(name + " is not set");
  const int value = whole_number(set->second, most).value_or(-1);
  if (value >= least) return value;
  return wrong(name + " is " + engine::quoted(set->second) + "; it must be a whole number from " +
               std::to_string(least) + " to " + std::to_string(most));
}

Error half_set(const Names& names, const std::vector<std::string>& there,
               const std::vector<std::string>& missing) {
  return wrong(std::string("incomplete ") + names.title + " environment: with " +
               joined(there, ", ") + ", but without " + joined(missing, ", ") +
               ". Start every rank with " + names.title + ", or unset " +
               (names.launcher == Launcher::kSlurm ? "SLURM_STEP_ID" : joined(there, ", ")) +
               " to run one process");
}

// Whether srun started this process. A batch script and a shell of salloc may have all variables of
// a task, but those of a step. Their own steps have numbers of 2^32 - 16 and above.
bool is_task_of_slurm(const Environment& environment) {
  const auto* const step = first_set(environment, {"SLURM_STEP_ID", "SLURM_STEPID"});
  return step != nullptr && whole_number(step->second, 1'000'000'000) &&
         first_set(environment, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"}) != nullptr;
}

// The number of Slurm's tasks on this task's node.
Result<int> slurm_local_world(const Environment& environment, const std::string& name, int world) {
  const std::string& text = environment.find(name)->second;
  auto counts = parse_tasks_per_node(text);
  if (!counts.ok()) return std::move(counts).error().with_context(name);
  const std::int64_t tasks = std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
  if (tasks != world)
    return wrong(name + " is " + engine::quoted(text) + ", which makes " + std::to_string(tasks) +
                 " tasks, and SLURM_NTASKS is " + std::to_string(world) +
                 ": start the run by srun");
  if (std::equal(counts->begin() + 1, counts->end(), counts->begin())) return counts->front();
  SLUICE_ASSIGN_OR_RETURN(
      const int node, number(environment, "SLURM_NODEID", static_cast<int>(counts->size()) - 1));
  return (*counts)[static_cast<std::size_t>(node)];
}

// kNone if this launcher has not started the process.
Result<Launch> read_numbers(const Environment& environment, const Names& names) {
  const auto is_set = [&](const std::string& name) { return environment.contains(name); };
  std::istringstream words(names.numbers);
  std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  if (std::none_of(all.begin(), all.begin() + 3, is_set)) return Launch();
  if (names.launcher == Launcher::kSlurm && !is_task_of_slurm(environment)) return Launch();
  if (all.size() > 4 && !is_set(all[3]) && is_set(all[4])) all[3] = all[4];
  all.resize(4);

  std::vector<std::string> there;
  std::vector<std::string> missing;
  std::partition_copy(all.begin(), all.end(), std::back_inserter(there),
                      std::back_inserter(missing), is_set);
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
  struct Bound {
    std::size_t number, limit;
    int distance;
  };
  for (const auto& [i, limit, distance] : {Bound{0, 1, 1}, {2, 3, 1}, {3, 1, 0}, {2, 0, 0}})
    if (*values[i] + distance > *values[limit])
      return wrong(all[i] + " is " + std::to_string(*values[i]) + ", which is " +
                   (distance == 0 ? "more than " : "not below ") + all[limit] + ", " +
                   std::to_string(*values[limit]));
  launch.described = std::string(names.title) + " says rank " + std::to_string(context.rank) +
                     " of " + std::to_string(context.world);
  return launch;
}

// What Slurm says of rank 0's address and of the job.
Status read_slurm_job(const Environment& environment, Launch& launch) {
  if (const auto* const list =
          first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})) {
    auto nodes = parse_node_list(list->second);
    if (!nodes.ok()) return std::move(nodes).error().with_context(list->first);
    launch.master_address = nodes->front();
  }
  if (const auto* const job = first_set(environment, {"SLURM_JOB_ID"})) {
    // Two jobs that share a host should not use the same port.
    SLUICE_ASSIGN_OR_RETURN(const int id, number(environment, job->first, 2'000'000'000));
    launch.master_port = static_cast<std::uint16_t>(15'000 + id % 15'000);
    launch.job = "Slurm " + job->second;
  }
  launch.job += " step " + first_set(environment, {"SLURM_STEP_ID", "SLURM_STEPID"})->second;
  return {};
}

// Rank 0's address, if the environment has it.
Status read_master(const Environment& environment, Launch& launch) {
  if (const auto* const address = first_set(environment, {"MASTER_ADDR"})) {
    std::string& host = launch.master_address = address->second;
    const bool is_name =
        std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < 127; });
    if (host.empty() || host.size() > 255 || !is_name)
      return wrong("MASTER_ADDR is " + engine::quoted(host) +
                   "; it must be a host's name or address");
  }
  const bool has_port = environment.contains("MASTER_PORT");
  if (has_port) {
    SLUICE_ASSIGN_OR_RETURN(const int port, number(environment, "MASTER_PORT", 65535, 1));
    launch.master_port = static_cast<std::uint16_t>(port);
  }
  if (launch.launcher != Launcher::kTorchrun) return {};
  const auto* const agent = first_set(environment, {"TORCHELASTIC_USE_AGENT_STORE"});
  if (agent != nullptr && agent->second == "True")
    launch.master_port += launch.master_port < 65535 ? 1 : -1;
  // A launcher that sets the local ranks also sets the port.
  std::vector<std::string> missing;
  const bool has_local = environment.contains("LOCAL_RANK");
  if (launch.master_address.empty())
    missing.emplace_back(has_local ? "MASTER_ADDR"
                                   : "MASTER_ADDR (rank 0's host; LOCAL_RANK and LOCAL_WORLD_SIZE "
                                     "too where several ranks share a host)");
  if (has_local && !has_port) missing.emplace_back("MASTER_PORT");
  if (launch.context.world == 1 || missing.empty()) return {};
  return half_set(kLaunchers.front(), {"RANK", "WORLD_SIZE"}, missing);
}

// What distinguishes this run's ranks from another run's at the same port, and from strangers.
Status read_trust(const Environment& environment, Launch& launch) {
  if (launch.launcher == Launcher::kTorchrun)
    for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
      if (const auto* const part = first_set(environment, {name})) launch.job += "/" + part->second;
  if (const auto* const own = first_set(environment, {"SLUICE_JOB"})) launch.job = own->second;
  for (const auto& [name, value] : {std::pair("SLUICE_SECRET", &launch.secret),
                                    std::pair("SLUICE_SECRET_FILE", &launch.secret_file),
                                    std::pair("SLUICE_LISTEN", &launch.listen_address)})
    if (const auto* const set = first_set(environment, {name})) {
      *value = set->second;
      if (value->empty())
        return wrong(std::string(name) + " is empty: give it a value, or unset it");
    }
  if (!launch.secret.empty()) launch.secret_file.clear();
  return {};
}

// Which of the visible GPUs is this process's own.
int choose_device(const Environment& environment, int local_rank) {
  const auto* const visible = first_set(environment, {"CUDA_VISIBLE_DEVICES"});
  if (visible == nullptr) return local_rank;
  if (visible->second.empty() || visible->second.front() == '-') return -1;
  // A launcher that gives each rank its own GPU makes only that one visible.
  return visible->second.find(',') == std::string::npos ? 0 : local_rank;
}

Result<std::string> read_secret(const std::string& path) {
  constexpr std::size_t kMostBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open())
    return Error(ErrorCode::kNotFound, "SLUICE_SECRET_FILE, " + path + ", cannot be read");
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (!text.empty() && text.size() <= kMostBytes) return text;
  return wrong("SLUICE_SECRET_FILE, " + path + ", is empty or larger than 4 KiB: write random " +
               "text into it, such as the output of `openssl rand -hex 32`");
}

}  // namespace

Environment own_environment() {
  Environment variables;
  for (char** it = environ; *it != nullptr; ++it) {
    const std::string_view variable(*it);
    if (const std::size_t equals = variable.find('='); equals != std::string_view::npos)
      variables.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return variables;
}

Result<Launch> read_launch(const Environment& environment) {
  Launch chosen;
  for (const Names& names : kLaunchers) {
    SLUICE_ASSIGN_OR_RETURN(Launch read, read_numbers(environment, names));
    const bool is_first = chosen.launcher == Launcher::kNone;
    // One launcher's only task may have started the other launcher.
    if (!is_first && read.context.world > 1 &&
        (chosen.context.rank != read.context.rank || chosen.context.world != read.context.world))
      return wrong("the environment has two launchers that disagree: " + chosen.described +
                   " and " + read.described +
                   ". Unset the variables of the one that did not start this run");
    if (is_first) chosen = std::move(read);
    // mpirun starts its tasks inside a Slurm allocation, whose variables are the node's. Slurm's
    // own PMI sets two of MPICH's. torchrun itself is started once per host, by another launcher.
    if (chosen.launcher == Launcher::kOpenMpi ||
        (chosen.launcher == Launcher::kTorchrun && environment.contains("TORCHELASTIC_RUN_ID")) ||
        (chosen.launcher != Launcher::kNone && names.launcher == Launcher::kSlurm))
      break;
  }
  if (chosen.launcher == Launcher::kSlurm)
    SLUICE_RETURN_IF_ERROR(read_slurm_job(environment, chosen));
  if (chosen.launcher != Launcher::kNone) {
    SLUICE_RETURN_IF_ERROR(read_master(environment, chosen));
    SLUICE_RETURN_IF_ERROR(read_trust(environment, chosen));
  } else if (environment.contains("SLURM_JOB_ID")) {
    if (const auto* const tasks = first_set(environment, {"SLURM_NTASKS"}))
      chosen.tasks_beside = whole_number(tasks->second, kMaxRanks).value_or(0);
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
  TcpOptions options{.context = launch.context,
                     .master_address = launch.master_address,
                     .master_port = launch.master_port,
                     .listening_socket = listener,
                     .job = launch.job,
                     .secret = launch.secret,
                     .listen_address = launch.listen_address,
                     .how_to_start = launch.described + ": start them all, or unset its variables",
                     .collective_timeout = kMostPatience};
  // The same host identity as NCCL uses, which would otherwise see other hosts than Sluice does.
  if (const char* const host = std::getenv("NCCL_HOSTID"))  // NOLINT(concurrency-mt-unsafe)
    options.host = host;
  if (!launch.secret_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(options.secret, read_secret(launch.secret_file));
  }
  return make_tcp_communicator(options);
}

}  // namespace sluice::engine
