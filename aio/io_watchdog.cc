#include "aio/io_watchdog.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"

namespace sluice::aio {
namespace {

// How often a limit is looked at: a hang is told at most a quarter late.
constexpr int kLooksPerLimit = 4;

std::string in_seconds(std::int64_t ns) {
  std::ostringstream text;
  text.precision(ns < 10'000'000'000 ? 1 : 0);
  text << std::fixed << static_cast<double>(ns) * 1e-9 << " s";
  return text.str();
}

std::string describe(const IoQueue::InFlight& block) {
  std::string text(to_string(block.kind));
  if (block.kind != IoKind::kSync) {
    text += " of " + std::to_string(block.length_bytes) + " bytes at offset " +
            std::to_string(block.offset_bytes);
  }
  text += " of " + block.path;
  const std::string drive = describe_drive(block.path);
  return drive.empty() ? text : text + " on " + drive;
}

// "\040" and the like, as /proc/self/mountinfo writes spaces, tabs and backslashes.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '\\' && i + 3 < text.size() &&
        std::all_of(&text[i + 1], &text[i + 4], [](char c) { return c >= '0' && c <= '7'; });
    if (escape) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool lies_below(std::string_view path, std::string_view folder) {
  if (folder == "/") return true;
  return path.substr(0, folder.size()) == folder &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

std::string describe_drive(const std::string& path) {
  std::error_code error;
  const std::string absolute = std::filesystem::weakly_canonical(path, error).string();
  if (error) return {};
  std::ifstream mounts("/proc/self/mountinfo");
  std::string best_mount;
  std::string best;
  for (std::string line; std::getline(mounts, line);) {
    // ... <5: mount point> ... - <file system> <source> ...
    std::istringstream words(line);
    std::string word;
    std::string mount;
    for (int i = 0; i < 5; ++i) words >> mount;
    mount = unescaped(mount);
    while (words >> word && word != "-") {
    }
    std::string type;
    std::string source;
    if (!(words >> type >> source)) continue;
    // Of two mounts at one place the later one hides the other.
    if (!lies_below(absolute, mount) || mount.size() < best_mount.size()) continue;
    best_mount = mount;
    best = unescaped(source);
    best.append(" (").append(type).append(", mounted at ").append(mount).append(")");
  }
  return best;
}

IoWatchdog::IoWatchdog(const std::vector<const IoQueue*>& queues, Options options)
    : options_([&] {
        if (!options.report)
          options.report = [](const std::string& message) { log::warning(message); };
        return std::move(options);
      }()) {
  SLUICE_CHECK(options_.limit_ns > 0, "a watchdog's limit must be more than 0");
  for (const IoQueue* queue : queues)
    watched_.push_back({.queue = queue, .next_report_ns = options_.limit_ns});
  thread_ = std::thread([this] { run(); });
}

IoWatchdog::~IoWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void IoWatchdog::run() {
  const auto pause = std::chrono::nanoseconds(
      std::max<std::int64_t>(options_.limit_ns / kLooksPerLimit, 1'000'000));
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, pause, [this] { return stop_; })) {
    lock.unlock();
    for (Watched& watched : watched_) look(watched);
    lock.lock();
  }
}

void IoWatchdog::look(Watched& watched) const {
  const auto oldest = watched.queue->oldest_in_flight();
  const std::int64_t age_ns = oldest ? oldest->age_ns : 0;
  // Whatever is in flight now began after the last message: what it told of is back.
  if (watched.reported_ns > 0 && age_ns < watched.reported_ns) {
    options_.report("the drive has answered: " + watched.told);
    watched.reported_ns = 0;
    watched.next_report_ns = options_.limit_ns;
  }
  if (!oldest || age_ns < watched.next_report_ns) return;
  watched.told = describe(*oldest);
  watched.reported_ns = age_ns;
  watched.next_report_ns = 2 * age_ns;
  options_.report("a drive has not answered for " + in_seconds(age_ns) + ": " + watched.told +
                  ". Nothing is lost yet, and work goes on when it answers; the kernel's log "
                  "(dmesg) says what is wrong with it");
}

}  // namespace sluice::aio
