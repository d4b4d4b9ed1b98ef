#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>

#include "aio/mount_table.h"
#include "tools/doctor/gather_facts.h"

namespace sluice::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTorchLibrary = "libtorch_cpu.so";
constexpr std::string_view kWarning = "sluice: ";

// "2.11.0+cu130", from torch's version.py, or from the file build-version of a LibTorch archive.
std::string version_in(const std::string& torch_folder) {
  std::istringstream lines(aio::read_text(torch_folder + "/version.py"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("__version__")) continue;
    const std::size_t begin = line.find_first_of("'\"");
    const std::size_t end = line.find_first_of("'\"", begin + 1);
    if (end != std::string::npos) return line.substr(begin + 1, end - begin - 1);
  }
  std::string word;
  std::istringstream(aio::read_text(torch_folder + "/build-version")) >> word;
  return word;
}

// Reads the loader's list of libraries: "\tlibc10.so => /opt/torch/lib/libc10.so (0x...)", or
// "=> not found".
void read_libraries(const std::string& list, EngineFacts& facts) {
  constexpr std::string_view kArrow = " => ";
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t arrow = line.find(kArrow);
    const std::size_t begin = line.find_first_not_of(" \t");
    if (arrow == std::string::npos || begin >= arrow) continue;
    const std::string name = line.substr(begin, arrow - begin);
    std::string path = line.substr(arrow + kArrow.size());
    if (path.starts_with("not found")) {
      facts.missing_libraries.push_back(name);
      continue;
    }
    path.resize(std::min(path.size(), path.find(" (")));
    if (name == kTorchLibrary)
      facts.torch_folder = fs::path(path).lexically_normal().parent_path().parent_path().string();
  }
}

std::string without_line_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string last_line(const std::string& text) {
  const std::string trimmed = without_line_end(text);
  return trimmed.substr(trimmed.rfind('\n') + 1);
}

}  // namespace

BuildFacts build_facts() {
  BuildFacts facts{.torch_version = SLUICE_TORCH_VERSION, .cuda_version = SLUICE_CUDA_VERSION};
  std::istringstream numbers(SLUICE_CUDA_ARCHITECTURES);  // "75,80-real,90a"
  for (std::string number; std::getline(numbers, number, ',');)
    if (const int architecture = std::atoi(number.c_str()); architecture > 0)
      facts.architectures.push_back(architecture);
  return facts;
}

EngineFacts engine_facts(const BuildFacts& build, const std::string& engine,
                         const RunProgram& run) {
  EngineFacts facts{.path = engine};
  std::error_code error;
  facts.exists = !build.torch_version.empty() && fs::exists(engine, error);
  if (!facts.exists) return facts;
  // The loader then prints what it would load, and starts nothing.
  read_libraries(run({"/usr/bin/env", "LD_TRACE_LOADED_OBJECTS=1", engine}).output, facts);
  if (!facts.torch_folder.empty()) facts.torch_version = version_in(facts.torch_folder);
  // The start script of a wheel looks at the torch that is installed. `sluice` then refuses to
  // start the engine.
  const char* const problem = std::getenv("SLUICE_TORCH_PROBLEM");  // NOLINT(concurrency-mt-unsafe)
  if (problem != nullptr && *problem != '\0') {
    facts.problem = problem;
    return facts;
  }
  const ProgramEnd end = run({engine, "--version"});
  facts.starts = end.started && end.ended_well;
  const std::string said = last_line(end.output);
  if (!facts.starts) {
    facts.problem = said.empty() ? end.ending : said;
    return facts;
  }
  std::istringstream lines(end.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kWarning))
      facts.warning = line.substr(kWarning.size(), line.find("; sluice doctor") - kWarning.size());
  return facts;
}

}  // namespace sluice::doctor
