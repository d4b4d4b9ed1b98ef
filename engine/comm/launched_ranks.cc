#include "engine/comm/launched_ranks.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "aio/log.h"
#include "engine/comm/launcher_text.h"
#include "engine/comm/mpi_communicator.h"
#include "engine/comm/tcp_communicator.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace sluice::engine {

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

namespace {

Result<std::string> read_secret(const std::string& path) {
  constexpr std::size_t kMostBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return Error(ErrorCode::kNotFound, "SLUICE_SECRET_FILE, " + path + ", cannot be read");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!text.empty() && text.size() <= kMostBytes) return text;
  return wrong("SLUICE_SECRET_FILE, " + path + ", " +
               (text.empty() ? "is empty" : "is larger than 4 KiB") +
               ": write random text into it, such as the output of `openssl rand -hex 32`");
}

// Advice for a process that waits for ranks that do not come.
std::string how_to_start(const Launch& launch) {
  const std::string world = std::to_string(launch.context.world);
  if (launch.launcher == Launcher::kSlurm)
    return "Slurm's variables say that this is one of " + world +
           " tasks; start them with srun, or unset SLURM_STEP_ID to run one process";
  if (launch.launcher == Launcher::kTorchrun)
    return "RANK and WORLD_SIZE say that this is one of " + world +
           " processes; start them all, or unset both to run one";
  return {};
}

}  // namespace

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
  options.how_to_start = how_to_start(launch);
  return make_tcp_communicator(options);
}

}  // namespace sluice::engine
