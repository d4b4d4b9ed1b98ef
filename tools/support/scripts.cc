#include "tools/support/scripts.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

// The file that this code is in: the Python module, or the program.
fs::path own_file() {
  std::error_code error;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_file), &info) != 0 &&
      info.dli_fname != nullptr)  // NOLINT
    if (const fs::path module = info.dli_fname; module.extension() == ".so")
      return fs::canonical(module, error);
  return fs::read_symlink("/proc/self/exe", error);
}

}  // namespace

Result<std::string> find_script(std::string_view name) {
  std::error_code error;
  const fs::path program = own_file();
  for (auto folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const char* const scripts :
         {"tools", "share/sluice/tools", "sluice_programs/share/sluice/tools"})
      if (const auto script = folder / scripts / name; fs::is_regular_file(script, error))
        return script.string();
  }
  return Error(ErrorCode::kNotFound, "the script tools/" + std::string(name) +
                                         " was not found near " + program.string() +
                                         ": install Sluice again");
}

}  // namespace sluice::tools
