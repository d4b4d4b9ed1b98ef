#include "engine/observe/process_memory.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace sluice::engine {
namespace {

constexpr const char* kStatus = "/proc/self/status";

// "VmRSS:\t    1234 kB"
Result<std::uint64_t> line_bytes(std::string_view text, const std::string& name) {
  const Error missing(ErrorCode::kUnsupported,
                      std::string(kStatus) + " does not say " + name + " in kB");
  const std::size_t at = ("\n" + std::string(text)).find("\n" + name + ":");
  if (at == std::string::npos) return missing;
  std::string_view line = text.substr(at + name.size() + 1);
  line = line.substr(0, line.find('\n'));
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  std::uint64_t kib = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), kib);
  if (error != std::errc() || std::string_view(end, line.data() + line.size()) != " kB" ||
      kib >> 54 != 0) {
    return missing;
  }
  return kib * 1024;
}

}  // namespace

Result<ProcessMemory> parse_process_status(std::string_view text) {
  ProcessMemory memory;
  SLUICE_ASSIGN_OR_RETURN(memory.resident_bytes, line_bytes(text, "VmRSS"));
  SLUICE_ASSIGN_OR_RETURN(memory.peak_resident_bytes, line_bytes(text, "VmHWM"));
  SLUICE_ASSIGN_OR_RETURN(memory.pinned_bytes, line_bytes(text, "VmPin"));
  SLUICE_ASSIGN_OR_RETURN(memory.locked_bytes, line_bytes(text, "VmLck"));
  return memory;
}

Result<ProcessMemory> process_memory() {
  std::ifstream file(kStatus);
  return parse_process_status(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace sluice::engine
