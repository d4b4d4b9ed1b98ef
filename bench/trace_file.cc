#include "bench/trace_file.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace sluice::bench {

Status check_trace_file(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    return Error(ErrorCode::kAlreadyExists,
                 path + " already exists: name another file for the trace, or remove it");
  }
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Error(ErrorCode::kNotFound,
                 "there is no folder " + folder + " for the trace: make it, or name another file");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    return Error(ErrorCode::kPermission,
                 "the folder " + folder + " cannot be written: name another file for the trace");
  }
  return {};
}

}  // namespace sluice::bench
