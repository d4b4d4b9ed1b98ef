#include "engine/comm/launched_ranks.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>

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

Result<std::unique_ptr<Communicator>> meet_ranks(const Launch& launch, int listener) {
  if (launch.context.world == 1) return std::unique_ptr<Communicator>();
  // Another rank may be busy for as long as a checkpoint takes; one that has died is known at once.
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
  // As NCCL has it, which would otherwise see other hosts than Sluice does.
  const char* const host =
      std::getenv("NCCL_HOSTID");  // NOLINT(concurrency-mt-unsafe): at the start
  if (host != nullptr) options.host = host;
  options.collective_timeout = kMostPatience;
  options.context = launch.context;
  options.master_address = launch.master_address;
  options.master_port = launch.master_port;
  options.listening_socket = listener;
  options.job = launch.job;
  return make_tcp_communicator(options);
}

}  // namespace sluice::engine
