#include "tools/cli/rank_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "engine/comm/host_lists.h"
#include "engine/device/gpu.h"
#include "tools/cli/option_checks.h"

namespace sluice::tools {
namespace {

// Checks this machine's GPUs before ranks are started for them.
Status check_gpus(int wanted) {
  if (!engine::has_cuda_code()) return engine::no_cuda();
  const int there = engine::gpu_count();
  if (wanted <= there) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--gpus " + std::to_string(wanted) + ", but this process sees " +
                   std::to_string(there) + (there == 1 ? " GPU" : " GPUs") +
                   " (CUDA_VISIBLE_DEVICES): name as many, or --ranks with run.device \"cpu\"");
}

Error refused_by_launcher(const RankOptions& options, const engine::Launch& launch) {
  const std::string flag = options.gpus > 0    ? "--gpus"
                           : options.ranks > 0 ? "--ranks"
                                               : "--hostfile";
  const std::string value = options.hostfile.empty()
                                ? std::to_string(std::max(options.gpus, options.ranks))
                                : options.hostfile;
  return Error(ErrorCode::kInvalidArgument,
               flag + " " + value + ", but a launcher has started " +
                   std::to_string(launch.context.world) + " ranks: leave " + flag +
                   " out, or unset " +
                   (launch.launcher == engine::Launcher::kSlurm      ? "SLURM_STEP_ID"
                    : launch.launcher == engine::Launcher::kTorchrun ? "RANK and WORLD_SIZE"
                                                                     : "its variables") +
                   " to start them here");
}

Result<std::vector<engine::HostSlots>> read_hostfile(const std::string& path) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return Error(ErrorCode::kInvalidArgument, "the hostfile " + path + " is a folder");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad())
    return Error(ErrorCode::kNotFound, "the hostfile " + path + " cannot be read");
  auto hosts = engine::parse_hostfile(text);
  if (!hosts.ok()) return std::move(hosts).error().with_context(path);
  return hosts;
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  auto* const ranks =
      command
          .add_option(
              "--ranks", options.ranks,
              "Starts so many ranks on this machine, which share its cores, memory and drives; "
              "torchrun --no-python, mpirun and srun start them, too")
          ->type_name("N")
          ->check(at_least(1));
  auto* const gpus = command
                         .add_option("--gpus", options.gpus,
                                     "Trains on so many GPUs of this machine, with a rank for each")
                         ->type_name("N")
                         ->check(at_least(1))
                         ->excludes(ranks);
  auto* const hostfile =
      command
          .add_option("--hostfile", options.hostfile,
                      "Starts the ranks of several hosts by ssh: DeepSpeed's file, a line 'HOST "
                      "slots=N' each, this one first. All see the run's folder and data by the "
                      "same paths, and have this program where it is here")
          ->type_name("FILE")
          ->excludes(ranks)
          ->excludes(gpus);
  command
      .add_option("--ssh", options.remote.shell,
                  "Instead of ssh: a command that is given a host and a line for its shell, and "
                  "passes standard input on")
      ->type_name("COMMAND")
      ->capture_default_str()
      ->needs(hostfile);
  command
      .add_option("--master-port", options.remote.master_port,
                  "Where the first rank waits for the others")
      ->type_name("PORT")
      ->capture_default_str()
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

Result<std::optional<int>> start_ranks(const RankOptions& options, const engine::Launch& launch,
                                       int saved_code) {
  if (is_started_rank()) return std::optional<int>();
  const int ranks = std::max(options.ranks, options.gpus);
  // A launcher of a single task leaves starting the ranks to that task.
  if (launch.context.world > 1) {
    if (options.are_wanted() && ranks != launch.context.world)
      return refused_by_launcher(options, launch);
    return std::optional<int>();
  }
  SLUICE_ASSIGN_OR_RETURN(const auto of_host, ranks_of_this_host());
  if (!of_host && options.hostfile.empty() && ranks < 2 && options.gpus == 0)
    return std::optional<int>();
  SLUICE_ASSIGN_OR_RETURN(const auto words, own_words());
  const auto ended_with = [](Result<int> code) -> Result<std::optional<int>> {
    if (!code.ok()) return std::move(code).error();
    return std::optional<int>(*code);
  };
  if (of_host) return ended_with(run_host_ranks(words, *of_host, saved_code));
  if (!options.hostfile.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto hosts, read_hostfile(options.hostfile));
    return ended_with(run_hosts(words, hosts, options.remote, saved_code));
  }
  if (options.gpus > 0) SLUICE_RETURN_IF_ERROR(check_gpus(options.gpus));
  if (ranks < 2) return std::optional<int>();
  return ended_with(run_ranks(words, ranks, saved_code));
}

}  // namespace sluice::tools
