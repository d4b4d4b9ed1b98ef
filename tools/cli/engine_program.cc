#include "tools/cli/engine_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace sluice::tools {

Result<std::string> engine_path() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Error(ErrorCode::kIo, "/proc/self/exe cannot be read: " + error.message());
  return (self.parent_path() / "sluice-engine").string();
}

Error become_engine(char** argv) {
  // Set by the start script of a wheel, which looks at the torch that is installed.
  const char* const problem = std::getenv("SLUICE_TORCH_PROBLEM");
  if (problem != nullptr && *problem != '\0') return Error(ErrorCode::kInvalidArgument, problem);
  const auto program = engine_path();
  if (!program.ok()) return program.error();
  execv(program->c_str(), argv);
  const std::error_code failed(errno, std::generic_category());
  return Error(ErrorCode::kIo,
               *program + ", which this command needs, cannot be started: " + failed.message() +
                   ". Build it (tools/setup), or install Sluice again; sluice doctor checks the "
                   "installation");
}

}  // namespace sluice::tools
