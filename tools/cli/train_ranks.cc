#include "tools/cli/train_ranks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "engine/comm/host_lists.h"
#include "engine/comm/launcher_text.h"
#include "engine/config/resolve.h"
#include "engine/device/gpu.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/start_ranks.h"
#include "tools/session/error_text.h"
#include "tools/session/run_setup.h"

namespace sluice::tools {
namespace {

// Checks this machine's GPUs before ranks are started for them.
Status check_gpus(int wanted) {
  if (!engine::has_cuda_code()) return engine::no_cuda();
  const int there = engine::gpu_count();
  if (wanted <= there) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "--gpus " + std::to_string(wanted) + ", but this process sees " + std::to_string(there) +
          (there == 1 ? " GPU" : " GPUs") +
          " (CUDA_VISIBLE_DEVICES): use at most that many, or --ranks with run.device \"cpu\"");
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
          "--ssh", options.remote.shell,
          "Command that reaches a host; it gets the host and a shell command line, and must "
          "pass standard input on [ssh -o BatchMode=yes]")
      ->type_name("COMMAND")
      ->needs(hostfile);
  command
      .add_option("--master-port", options.remote.master_port,
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

namespace {

using nlohmann::json;

// Limits what a terminal shows of the other ranks to warnings and errors, with their rank.
class QuietRank {
 public:
  explicit QuietRank(int rank) : stream_(std::cerr.rdbuf(nowhere_.rdbuf())) {
    log::set_sink([rank, out = stream_](log::Level level, std::string_view message) {
      if (level == log::Level::kInfo) return;
      std::ostream(out) << "rank " << rank << ": " << message << "\n" << std::flush;
    });
  }
  ~QuietRank() {
    log::set_sink({});
    std::cerr.rdbuf(stream_);
  }
  QuietRank(const QuietRank&) = delete;
  QuietRank& operator=(const QuietRank&) = delete;

 private:
  std::ostringstream nowhere_;
  std::streambuf* const stream_;
};

// Whether this rank sees the run's folder at the same path, since each rank writes files of a
// checkpoint there. The first rank has put a mark file there.
Status see_folder(engine::Communicator& link, const std::string& path, const std::string& content) {
  std::ifstream file(path, std::ios::binary);
  const std::string found{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string answer = found == content ? "" : path + (file.is_open() ? " is another" : "");
  SLUICE_ASSIGN_OR_RETURN(const auto all, link.all_gather_text(answer));
  const auto blind =
      std::find_if(all.begin(), all.end(), [](const auto& it) { return !it.empty(); });
  if (blind == all.end()) return {};
  return Error(link.rank() == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kCancelled,
               "rank " + std::to_string(blind - all.begin()) +
                   " does not see the run's folder: it finds no " + engine::shown(*blind, 4096) +
                   ", which rank 0 has just written. Choose an --out that all hosts share at the "
                   "same path, such as a folder on a network file system");
}

struct HandedOut {
  config::Config config;
  std::optional<engine::CheckpointEntry> from;
  bool on_gpu = false;
  std::optional<engine::TraceLog::Options> trace;
};

Result<HandedOut> receive(engine::Communicator& link) {
  SLUICE_ASSIGN_OR_RETURN(const auto texts, link.all_gather_text(""));
  SLUICE_ASSIGN_OR_RETURN(const json content, read_json<json>(texts.front()));
  HandedOut handed;
  config::Sources sources;
  sources.run_file =
      config::Source{"the first rank's configuration", content.at("config").get<std::string>()};
  sources.world_size = link.world_size();
  SLUICE_ASSIGN_OR_RETURN(auto resolved, config::resolve(sources));
  handed.config = std::move(resolved.config);
  handed.on_gpu = content.at("on_gpu").get<bool>();
  if (content.contains("checkpoint")) {
    engine::CheckpointEntry entry;
    entry.path = content.at("checkpoint").get<std::string>();
    entry.step = content.at("step").get<std::int64_t>();
    handed.from = std::move(entry);
  }
  SLUICE_RETURN_IF_ERROR(see_folder(link, content.at("seen_at").get<std::string>(),
                                    content.at("seen").get<std::string>()));
  if (content.contains("trace"))
    handed.trace = {.first_step = content.at("trace").at(0).get<std::int64_t>(),
                    .last_step = content.at("trace").at(1).get<std::int64_t>()};
  return handed;
}

// With several ranks at one terminal, a rank's own failure is printed by that rank and by the first
// one. A lost rank is reported by the first and the second rank, in case the first is the lost one.
bool is_said_by_others(const Error& error, const Status& known, int rank) {
  if (!is_started_rank()) return false;
  if (error.code() == ErrorCode::kCancelled) return true;
  return rank > 1 && !known.ok() &&
         error.message().find(known.error().message()) != std::string::npos;
}

}  // namespace

Status hand_out(engine::Communicator& link, const LocatedRun& run) {
  const config::Config& config = run.wanted.resolved.config;
  const std::optional<engine::CheckpointEntry>& from = run.from.checkpoint;
  const std::optional<engine::TraceLog::Options>& trace = run.wanted.trace;
  json content = {{"config", config::to_json(config)}, {"on_gpu", engine::uses_cuda(config)}};
  if (from) {
    content["checkpoint"] = from->path;
    content["step"] = from->step;
  }
  if (trace) content["trace"] = {trace->first_step, trace->last_step};
  SLUICE_ASSIGN_OR_RETURN(const RunFolder::Mark mark, run.folder.leave_mark());
  content["seen_at"] = mark.path;
  content["seen"] = mark.content;
  SLUICE_RETURN_IF_ERROR(link.all_gather_text(content.dump()).status());
  Status seen = see_folder(link, mark.path, mark.content);
  SLUICE_RETURN_IF_ERROR(run.folder.remove_mark());
  return seen;
}

void see_own_gpu(const engine::RankContext& context) {
  if (context.world == 1 || context.device <= 0) return;
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  const char* const given = std::getenv(kVisible);  // NOLINT(concurrency-mt-unsafe): at the start
  std::string own = std::to_string(context.device);
  if (given != nullptr) {
    std::istringstream names(given);
    for (int number = 0; number <= context.device; ++number)
      if (!std::getline(names, own, ',')) own.clear();
  }
  setenv(kVisible, own.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): at the start
}

int end_together(engine::Communicator& link, int code) {
  // A rank that is gone by now had already completed its part of the run.
  const auto codes = link.all_gather_text(std::to_string(code));
  return codes.ok() ? engine::whole_number(codes->front(), 255).value_or(code) : code;
}

Result<int> follow_first_rank(const engine::RankContext& context, engine::Communicator& link,
                              aio::IoWatchdog& watchdog) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  bool has_begun = false;
  const auto follow = [&]() -> Status {
    const QuietRank quiet(link.rank());
    SLUICE_ASSIGN_OR_RETURN(const HandedOut handed, receive(link));
    watchdog.set_limit_s(handed.config.run.io_watchdog_s);
    if (handed.on_gpu != engine::uses_cuda(handed.config)) {
      return Error(
          ErrorCode::kInvalidArgument,
          std::string(handed.on_gpu ? "there is no GPU for this rank, but the first rank uses one"
                                    : "this rank sees a GPU, but the first rank sees none") +
              ": each rank of a host needs its own GPU, but " +
              std::to_string(context.local_world) +
              " run here. Start fewer, or set run.device to \"cpu\"");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto run,
                            set_up_run(handed.config, handed.from, {.link = &link}));
    has_begun = true;
    if (handed.trace) run->trace().start(*handed.trace);
    return run->follow();
  };
  Status done;
  try {
    done = follow();
  } catch (const std::exception& error) {
    done = error_of(error);
  }
  if (done.ok()) return end_together(link, 0);
  // The first rank or another one refused to begin; the first one prints the reason.
  if (!has_begun && done.error().code() == ErrorCode::kCancelled) return 1;
  const Status known = link.health();
  link.abort(done.error().message());
  return is_said_by_others(done.error(), known, link.rank())
             ? Result<int>(1)
             : std::move(done).error().with_context("rank " + std::to_string(link.rank()));
}

}  // namespace sluice::tools
