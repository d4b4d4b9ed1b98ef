#include "tools/cli/monitors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "aio/log.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "sluice-log";
constexpr std::chrono::seconds kPatience(30);  // for sending data to a server
constexpr std::chrono::milliseconds kLookEvery(20);

// Next to this program, else on PATH; empty: not found.
std::string find_program() {
  std::vector<fs::path> folders;
  std::error_code ignored;
  folders.push_back(fs::read_symlink("/proc/self/exe", ignored).parent_path());
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): never set here
  std::istringstream list(path == nullptr ? "" : path);
  for (std::string folder; std::getline(list, folder, ':');)
    if (!folder.empty()) folders.emplace_back(folder);
  for (const fs::path& folder : folders) {
    const fs::path program = folder / kProgram;
    if (!folder.empty() && fs::is_regular_file(program, ignored) &&
        ::access(program.c_str(), X_OK) == 0)
      return program.string();
  }
  return {};
}

std::vector<std::string> words_of(const config::Config& config, const std::string& run_dir) {
  std::error_code ignored;
  std::vector<std::string> words = {fs::absolute(run_dir, ignored).string(), "--follow",
                                    "--companion"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.push_back(std::string(option) + "=" + value);
  };
  // The folders that DeepSpeed uses.
  const auto folder = [&](const config::Monitors::Files& files, const char* own) {
    const fs::path base =
        files.output_path.empty() ? fs::path(run_dir) / own : fs::path(files.output_path);
    return (base / files.job_name).string();
  };
  const config::Monitors& monitors = config.monitors;
  if (monitors.tensorboard.enabled)
    add("--tensorboard", folder(monitors.tensorboard, "tensorboard"));
  if (monitors.csv.enabled) add("--csv", folder(monitors.csv, "csv"));
  if (monitors.wandb.enabled) {
    add("--wandb", monitors.wandb.project);
    add("--wandb-team", monitors.wandb.team);
    add("--wandb-group", monitors.wandb.group);
  }
  return words;
}

// The last line of sluice-log's output.
std::string last_line(int file) {
  std::array<char, 4096> text{};
  const off_t size = ::lseek(file, 0, SEEK_END);
  const off_t begin = std::max<off_t>(size - static_cast<off_t>(text.size()), 0);
  const ssize_t got = ::pread(file, text.data(), text.size(), begin);
  std::string_view all(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!all.empty() && all.back() == '\n') all.remove_suffix(1);
  return std::string(all.substr(all.rfind('\n') + 1));
}

}  // namespace

Monitors::Monitors(const config::Config& config, const std::string& run_dir) {
  if (!config.monitors.any()) return;
  const std::string program = find_program();
  if (program.empty()) {
    log::warning(
        "metrics are not exported: tensorboard, csv_monitor or wandb is enabled, but sluice-log is "
        "neither in this program's folder nor on PATH (it is in tools/)");
    return;
  }
  said_ = ::memfd_create(kProgram, MFD_CLOEXEC);
  std::vector<std::string> words = words_of(config, run_dir);
  words.insert(words.begin(), program);
  auto started = ChildProcess::start(
      std::move(words), {.output = said_ >= 0 ? said_ : STDERR_FILENO, .own_group = true});
  if (started.ok())
    child_ = *std::move(started);
  else
    log::warning("metrics are not exported: " + started.error().message());
}

Monitors::~Monitors() {
  if (child_) child_->leave();
  if (said_ >= 0) ::close(said_);
}

void Monitors::report_end() {
  const std::string how = child_->ending();
  child_.reset();
  if (how.ends_with("exit code 0")) return;
  const std::string why = said_ >= 0 ? last_line(said_) : std::string();
  log::warning(std::string("metrics are no longer exported, and training continues: ") + kProgram +
               " ended " + how + (why.empty() ? "" : ": " + why));
}

void Monitors::look() {
  if (child_ && !child_->runs()) report_end();
}

void Monitors::finish(const Interrupt& interrupt) {
  if (!child_) return;
  child_->end_input();
  const bool was_interrupted = interrupt.requested();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (child_->runs() && std::chrono::steady_clock::now() < deadline &&
         interrupt.requested() == was_interrupted)
    std::this_thread::sleep_for(kLookEvery);
  if (!child_->runs()) return report_end();
  log::warning(std::string(kProgram) + " still writes metrics and continues by itself");
  child_->leave();
  child_.reset();
}

}  // namespace sluice::tools
