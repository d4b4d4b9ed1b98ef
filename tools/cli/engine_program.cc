#include "tools/cli/engine_program.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace sluice::tools {

Error become_engine(char** argv) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Error(ErrorCode::kIo, "/proc/self/exe cannot be read: " + error.message());
  const std::string program = self.parent_path() / "sluice-engine";
  execv(program.c_str(), argv);
  const std::error_code failed(errno, std::generic_category());
  return Error(ErrorCode::kIo, program + ", which this command needs, cannot be started: " +
                                   failed.message() + ". Build it (tools/setup), or install again");
}

}  // namespace sluice::tools
