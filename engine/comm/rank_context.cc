#include "engine/comm/rank_context.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"

namespace sluice::engine {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  const std::string* find(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? nullptr : &found->second;
  }
  Result<int> number(std::string_view name, int most) const {
    const std::string* const text = find(name);
    if (text == nullptr) return wrong(std::string(name) + " is not set");
    const std::optional<int> value = whole_number(*text, most);
    if (!value) {
      return wrong(std::string(name) + " is " + engine::quoted(*text) +
                   "; it must be a whole number from " + "0 to " + std::to_string(most));
    }
    return *value;
  }

 private:
  const Environment& environment_;
};

// A launcher's names for the four numbers.
struct Names {
  Launcher launcher;
  const char* title;
  std::array<const char*, 4> numbers;  // rank, world, local rank, local world
};

constexpr std::array kNames = {
    Names{
        Launcher::kTorchrun, "torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
    Names{Launcher::kOpenMpi,
          "OpenMPI",
          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
           "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    Names{
        Launcher::kMpich, "MPICH", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
};

Status check_numbers(const Names& names, const RankContext& context) {
  const auto pair = [&](int first, int first_value, const char* relation, int second,
                        int second_value) {
    return std::string(names.numbers[static_cast<std::size_t>(first)]) + " is " +
           std::to_string(first_value) + ", which is " + relation + " " +
           names.numbers[static_cast<std::size_t>(second)] + ", " + std::to_string(second_value);
  };
  if (context.world < 1)
    return wrong(std::string(names.numbers[1]) + " is 0, but a run has at least one rank");
  if (context.rank >= context.world) {
    return wrong(pair(0, context.rank, "not below", 1, context.world));
  }
  if (context.local_world < 1) return wrong(std::string(names.numbers[3]) + " is 0");
  if (context.local_rank >= context.local_world) {
    return wrong(pair(2, context.local_rank, "not below", 3, context.local_world));
  }
  if (context.local_world > context.world) {
    return wrong(pair(3, context.local_world, "more than", 1, context.world));
  }
  if (context.local_rank > context.rank) {
    return wrong(pair(2, context.local_rank, "more than", 0, context.rank));
  }
  return {};
}

// `hint`: an alternative for the user.
Status half_set(const char* title, const std::vector<std::string>& there,
                const std::vector<std::string>& missing, const std::string& hint = "") {
  const std::string_view name(title);
  const std::string starter = name == "Slurm"     ? "srun"
                              : name == "OpenMPI" ? "mpirun"
                              : name == "MPICH"   ? "mpiexec"
                                                  : title;
  return wrong("incomplete " + std::string(title) + " environment: " + listed(there) +
               (there.size() == 1 ? " is" : " are") + " set, and " + listed(missing) +
               (missing.size() == 1 ? " is" : " are") + " not. " + hint + "Start every rank with " +
               starter + ", or unset " + (name == "Slurm" ? "SLURM_STEP_ID" : listed(there)) +
               " to run one process");
}

// Kubeflow's PyTorchJob starts one process in each pod, and gives no local numbers.
Result<Launch> one_rank_a_host(const Reader& reader, const Names& names) {
  Launch launch{.launcher = Launcher::kTorchrun};
  SLUICE_ASSIGN_OR_RETURN(launch.context.rank, reader.number("RANK", kMaxRanks));
  SLUICE_ASSIGN_OR_RETURN(launch.context.world, reader.number("WORLD_SIZE", kMaxRanks));
  SLUICE_RETURN_IF_ERROR(check_numbers(names, launch.context));
  if (launch.context.world > 1 && reader.find("MASTER_ADDR") == nullptr) {
    return half_set(names.title, {"RANK", "WORLD_SIZE"}, {"MASTER_ADDR"},
                    "Set it to rank 0's host, and LOCAL_RANK and LOCAL_WORLD_SIZE where several "
                    "ranks share a host. ")
        .error();
  }
  return launch;
}

// Reads a launcher's four numbers; kNone if none of them is set.
Result<Launch> read_plain(const Reader& reader, Names names) {
  // DeepSpeed's launcher sets all of torchrun's variables except this one.
  if (names.launcher == Launcher::kTorchrun && reader.find("RANK") != nullptr &&
      reader.find("LOCAL_WORLD_SIZE") == nullptr && reader.find("LOCAL_SIZE") != nullptr)
    names.numbers[3] = "LOCAL_SIZE";
  std::vector<std::string> there;
  std::vector<std::string> missing;
  for (const char* name : names.numbers) (reader.find(name) ? there : missing).emplace_back(name);
  if (there.empty()) return Launch();
  Launch launch{.launcher = names.launcher};
  if (names.launcher == Launcher::kTorchrun && reader.find("RANK") != nullptr &&
      reader.find("WORLD_SIZE") != nullptr && missing.size() == 2) {
    return one_rank_a_host(reader, names);
  }
  if (!missing.empty()) return half_set(names.title, there, missing).error();
  RankContext& context = launch.context;
  const std::array<int*, 4> values = {&context.rank, &context.world, &context.local_rank,
                                      &context.local_world};
  for (std::size_t i = 0; i < values.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(*values[i], reader.number(names.numbers[i], kMaxRanks));
  }
  SLUICE_RETURN_IF_ERROR(check_numbers(names, context));
  return launch;
}

// The number of tasks on this task's node, and the variable that has it.
Result<int> slurm_local_world(const Reader& reader, int world, const char** name) {
  for (*name = "SLURM_STEP_TASKS_PER_NODE"; *name != nullptr;
       *name = std::string_view(*name) == "SLURM_STEP_TASKS_PER_NODE" ? "SLURM_TASKS_PER_NODE"
                                                                      : nullptr) {
    const std::string* const text = reader.find(*name);
    if (text == nullptr) continue;
    auto counts = parse_tasks_per_node(*text);
    if (!counts.ok()) return std::move(counts).error().with_context(*name);
    const std::int64_t tasks = std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
    if (tasks != world) {
      return wrong(std::string(*name) + " is " + engine::quoted(*text) + ", which makes " +
                   std::to_string(tasks) + " tasks, and SLURM_NTASKS is " + std::to_string(world) +
                   ": start the run by srun");
    }
    if (std::adjacent_find(counts->begin(), counts->end(), std::not_equal_to<>()) ==
        counts->end()) {
      return counts->front();
    }
    SLUICE_ASSIGN_OR_RETURN(const int node, reader.number("SLURM_NODEID", kMaxRanks));
    if (static_cast<std::size_t>(node) >= counts->size()) {
      return wrong("SLURM_NODEID is " + std::to_string(node) + ", and " + *name + " has " +
                   std::to_string(counts->size()) + " nodes");
    }
    return (*counts)[static_cast<std::size_t>(node)];
  }
  *name = "SLURM_NTASKS_PER_NODE";
  return reader.number(*name, kMaxRanks);
}

// Whether srun started this process. A batch script and a shell of salloc also have the number of
// tasks, and the script even a task number, although no task was started. Their step numbers are
// 2^32 - 16 and above, or missing.
bool is_task_of_slurm(const Reader& reader) {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    const std::string* const step = reader.find(name);
    if (step != nullptr) return whole_number(*step, 1'000'000'000).has_value();
  }
  return false;
}

int tasks_of_allocation(const Reader& reader) {
  const std::string* const tasks = reader.find("SLURM_NTASKS");
  if (tasks == nullptr || reader.find("SLURM_JOB_ID") == nullptr) return 0;
  return whole_number(*tasks, kMaxRanks).value_or(0);
}

Result<Launch> read_slurm(const Reader& reader) {
  if (!is_task_of_slurm(reader)) return Launch();
  std::vector<std::string> there;
  std::vector<std::string> missing;
  for (const char* name : {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
    (reader.find(name) ? there : missing).emplace_back(name);
  }
  const auto is_set = [&](const char* name) { return reader.find(name) != nullptr; };
  if (!is_set("SLURM_STEP_TASKS_PER_NODE") && !is_set("SLURM_TASKS_PER_NODE") &&
      !is_set("SLURM_NTASKS_PER_NODE")) {
    missing.emplace_back("SLURM_TASKS_PER_NODE (or SLURM_NTASKS_PER_NODE)");
  }
  if (!missing.empty()) return half_set("Slurm", there, missing).error();

  Launch launch{.launcher = Launcher::kSlurm};
  RankContext& context = launch.context;
  SLUICE_ASSIGN_OR_RETURN(context.rank, reader.number("SLURM_PROCID", kMaxRanks));
  SLUICE_ASSIGN_OR_RETURN(context.world, reader.number("SLURM_NTASKS", kMaxRanks));
  SLUICE_ASSIGN_OR_RETURN(context.local_rank, reader.number("SLURM_LOCALID", kMaxRanks));
  Names names{
      Launcher::kSlurm, "Slurm", {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr}};
  SLUICE_ASSIGN_OR_RETURN(context.local_world,
                          slurm_local_world(reader, context.world, &names.numbers[3]));
  SLUICE_RETURN_IF_ERROR(check_numbers(names, context));

  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (!is_set(name)) continue;
    auto nodes = parse_node_list(*reader.find(name));
    if (!nodes.ok()) return std::move(nodes).error().with_context(name);
    launch.master_address = nodes->front();
    break;
  }
  if (const std::string* const job = reader.find("SLURM_JOB_ID")) {
    // Two jobs that share a host should not use the same port.
    const std::optional<int> id = whole_number(*job, 2'000'000'000);
    if (!id)
      return wrong("SLURM_JOB_ID is " + engine::quoted(*job) + "; it must be a whole number");
    launch.master_port = static_cast<std::uint16_t>(15'000 + *id % 15'000);
    launch.job = "Slurm " + *job;
  }
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"})
    if (is_set(name)) launch.job += " step " + *reader.find(name);
  return launch;
}

// Rank 0's address, if the environment has it.
Status read_master(const Reader& reader, Launch* launch) {
  if (const std::string* const address = reader.find("MASTER_ADDR")) {
    const auto stray = [](unsigned char c) { return c <= ' ' || c > '~'; };
    if (address->empty() || address->size() > 255 ||
        std::any_of(address->begin(), address->end(), stray)) {
      return wrong("MASTER_ADDR is " + engine::quoted(*address) +
                   "; it must be a host's name or address");
    }
    launch->master_address = *address;
  }
  if (reader.find("MASTER_PORT") != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const int port, reader.number("MASTER_PORT", 65535));
    if (port == 0) return wrong("MASTER_PORT is 0; it must be a port from 1 to 65535");
    launch->master_port = static_cast<std::uint16_t>(port);
  }
  // torchrun's own store uses that port.
  const std::string* const agent = reader.find("TORCHELASTIC_USE_AGENT_STORE");
  if (launch->launcher == Launcher::kTorchrun && agent != nullptr && *agent == "True")
    launch->master_port = static_cast<std::uint16_t>(
        launch->master_port < 65535 ? launch->master_port + 1 : launch->master_port - 1);
  return {};
}

// Reads an identifier that distinguishes this run's ranks from another run's at the same port.
void read_job(const Reader& reader, Launch* launch) {
  if (const std::string* const own = reader.find("SLUICE_JOB")) {
    launch->job = *own;
    return;
  }
  if (launch->launcher != Launcher::kTorchrun) return;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
    if (const std::string* const text = reader.find(name)) launch->job += "/" + *text;
}

Status read_trust(const Reader& reader, Launch* launch) {
  for (const auto& [name, value] : {std::pair("SLUICE_SECRET", &launch->secret),
                                    std::pair("SLUICE_SECRET_FILE", &launch->secret_file),
                                    std::pair("SLUICE_LISTEN", &launch->listen_address)}) {
    const std::string* const text = reader.find(name);
    if (text == nullptr) continue;
    if (text->empty()) return wrong(std::string(name) + " is empty: give it a value, or unset it");
    *value = *text;
  }
  if (!launch->secret.empty()) launch->secret_file.clear();
  return {};
}

// Which of the visible GPUs is this process's own.
int choose_device(const Reader& reader, int local_rank) {
  const std::string* const visible = reader.find("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return local_rank;
  if (visible->empty() || visible->front() == '-') return -1;
  // A launcher that gives each rank its own GPU makes only that one visible.
  return visible->find(',') == std::string::npos ? 0 : local_rank;
}

const char* title_of(Launcher launcher) {
  for (const Names& names : kNames) {
    if (names.launcher == launcher) return names.title;
  }
  return launcher == Launcher::kSlurm ? "Slurm" : "no launcher";
}

std::string rank_of_world(const Launch& launch) {
  return "rank " + std::to_string(launch.context.rank) + " of " +
         std::to_string(launch.context.world);
}

}  // namespace

Result<Launch> read_launch(const Environment& environment) {
  const Reader reader(environment);
  Launch chosen;
  for (const Launcher launcher :
       {Launcher::kTorchrun, Launcher::kOpenMpi, Launcher::kSlurm, Launcher::kMpich}) {
    const bool is_chosen = chosen.launcher != Launcher::kNone;
    // Slurm's own PMI sets two of MPICH's variables.
    if (launcher == Launcher::kMpich && is_chosen) break;
    // mpirun starts its tasks inside a Slurm allocation, whose variables are the node's.
    if (launcher == Launcher::kSlurm && chosen.launcher == Launcher::kOpenMpi) break;
    const auto* const names = std::find_if(
        kNames.begin(), kNames.end(), [&](const Names& row) { return row.launcher == launcher; });
    auto read = launcher == Launcher::kSlurm ? read_slurm(reader) : read_plain(reader, *names);
    if (!read.ok()) return read.error();
    if (!is_chosen) {
      chosen = *read;
      // torchrun itself is started once per host, by some other launcher.
      if (reader.find("TORCHELASTIC_RUN_ID") != nullptr && launcher == Launcher::kTorchrun &&
          chosen.launcher == launcher) {
        break;
      }
      continue;
    }
    // One launcher's only task may have started the other launcher.
    if (read->context.world > 1 && (chosen.context.rank != read->context.rank ||
                                    chosen.context.world != read->context.world)) {
      return wrong(std::string("the environment has two launchers that disagree: ") +
                   title_of(chosen.launcher) + " says " + rank_of_world(chosen) + " and " +
                   title_of(launcher) + " says " + rank_of_world(*read) +
                   ". Unset the variables of the one that did not start this run");
    }
  }
  const bool alone = chosen.context.world == 1;
  if (chosen.launcher != Launcher::kNone) {
    SLUICE_RETURN_IF_ERROR(read_master(reader, &chosen));
    read_job(reader, &chosen);
    SLUICE_RETURN_IF_ERROR(read_trust(reader, &chosen));
  } else {
    chosen.tasks_beside = tasks_of_allocation(reader);
  }
  if (chosen.launcher == Launcher::kTorchrun && !alone) {
    // A launcher that sets the local ranks also sets the address of rank 0.
    const bool has_local = reader.find("LOCAL_RANK") != nullptr;
    std::vector<std::string> missing;
    if (reader.find("MASTER_ADDR") == nullptr) missing.emplace_back("MASTER_ADDR");
    if (has_local && reader.find("MASTER_PORT") == nullptr) missing.emplace_back("MASTER_PORT");
    if (!missing.empty()) return half_set("torchrun", {"RANK", "WORLD_SIZE"}, missing).error();
  }
  chosen.context.device = choose_device(reader, chosen.context.local_rank);
  return chosen;
}

}  // namespace sluice::engine
