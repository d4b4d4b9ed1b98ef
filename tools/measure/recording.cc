#include "tools/measure/recording.h"

#include <filesystem>
#include <system_error>

namespace sluice::tools {

Status save_trace(torch::autograd::profiler::ProfilerResult& recorded, const std::string& path) {
  if (path.empty()) return {};
  recorded.save(path);
  if (std::error_code ignored; !std::filesystem::exists(path, ignored))
    return Error(ErrorCode::kIo, "the trace could not be written to " + path);
  return {};
}

}  // namespace sluice::tools
