#include "aio/io_watchdog.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "aio/check.h"
#include "aio/clock.h"
#include "aio/drive_names.h"
#include "aio/io_thread.h"
#include "aio/log.h"

namespace sluice::aio {
namespace {

// Looks per limit: a hang is reported at most a quarter of the limit late.
constexpr int kLooksPerLimit = 8;
constexpr int kLastLooks = 20;
constexpr std::chrono::milliseconds kBetweenLastLooks{2};
// Work that began this little later than the reported work counts as the same: blocks of one batch.
constexpr std::int64_t kTogetherNs = 1'000'000;

std::string in_seconds(std::int64_t ns) {
  std::ostringstream text;
  text.precision(ns < 10'000'000'000 ? 1 : 0);
  text << std::fixed << static_cast<double>(ns) * 1e-9 << " s";
  return text.str();
}

// A copy may wait for either of its drives.
std::string with_drives(std::string operation, const std::vector<std::string>& paths) {
  std::vector<std::string> drives;
  for (const std::string& path : paths) {
    std::string drive = describe_drive(path);
    if (drive.empty() || std::find(drives.begin(), drives.end(), drive) != drives.end()) continue;
    operation += (drives.empty() ? " on " : " or ") + drive;
    drives.push_back(std::move(drive));
  }
  return operation;
}

std::string describe(const IoQueue::InFlight& block) {
  std::string text(to_string(block.kind));
  if (block.kind != IoKind::kSync) {
    text += " of " + std::to_string(block.length_bytes) + " bytes at offset " +
            std::to_string(block.offset_bytes);
  }
  return with_drives(text + " of " + block.path, {block.path});
}

}  // namespace

IoWatchdog::IoWatchdog(Options options) : IoWatchdog({}, std::move(options)) {}

IoWatchdog::IoWatchdog(const std::vector<const IoQueue*>& queues, Options options)
    : options_([&] {
        if (!options.report)
          options.report = [](const std::string& message) { log::warning(message); };
        return std::move(options);
      }()),
      limit_ns_(options_.limit_ns) {
  for (const IoQueue* queue : queues) queues_[next_number_++] = queue;
  const SignalsBlocked signals_blocked;
  thread_ = std::thread([this] {
    name_this_thread("sluice-watch");
    run();
  });
}

IoWatchdog::~IoWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

IoWatchdog::Watch IoWatchdog::watch(const IoQueue& queue) {
  const std::lock_guard lock(mutex_);
  queues_[next_number_] = &queue;
  return {*this, next_number_++};
}

void IoWatchdog::forget(int number) {
  const std::lock_guard lock(mutex_);
  queues_.erase(number);
}

void IoWatchdog::set_limit_s(double limit_s) {
  SLUICE_CHECK(limit_s >= 0, "a watchdog's limit must not be negative");
  {
    const std::lock_guard lock(mutex_);
    limit_ns_ = static_cast<std::int64_t>(limit_s * 1e9);
  }
  changed_.notify_all();
}

void IoWatchdog::run() {
  const auto look = [this] {
    look_at_queues();
    if (options_.file_calls) look_at_calls();
  };
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (limit_ns_ == 0) {
      changed_.wait(lock, [this] { return stop_ || limit_ns_ > 0; });
      continue;
    }
    limit_now_ns_ = limit_ns_;
    const auto pause =
        std::chrono::nanoseconds(std::max<std::int64_t>(limit_now_ns_ / kLooksPerLimit, 1'000'000));
    const auto changed = [this] { return stop_ || limit_ns_ != limit_now_ns_; };
    if (changed_.wait_for(lock, pause, changed)) continue;
    lock.unlock();
    look();
    lock.lock();
  }
  lock.unlock();
  // Once a hang has been reported, its end must be reported too.
  const auto waits = [this] {
    const auto was_told = [](const auto& one) { return !one.second.told.empty(); };
    return std::any_of(hanging_queues_.begin(), hanging_queues_.end(), was_told) ||
           std::any_of(hanging_calls_.begin(), hanging_calls_.end(), was_told);
  };
  // A thread that has just returned may still show as running, so it is looked at again a moment
  // later.
  for (int left = kLastLooks; left > 0 && waits(); --left) {
    look();
    if (waits()) std::this_thread::sleep_for(kBetweenLastLooks);
  }
}

void IoWatchdog::look_at_queues() {
  std::map<int, std::optional<Seen>> seen;
  {  // forget() waits for this lock, so that a queue is never looked at after it is destroyed
    const std::lock_guard lock(mutex_);
    const std::int64_t now_ns = SteadyClock().now_ns();
    for (const auto& [number, queue] : queues_) {
      const auto oldest = queue->oldest_in_flight();
      auto& found = seen[number];
      if (!oldest) continue;
      found = Seen{.since_ns = now_ns - oldest->age_ns,
                   .describe = [block = *oldest] { return describe(block); },
                   .who = "a drive has not answered for "};
    }
  }
  for (const auto& [number, found] : seen) judge(hanging_queues_[number], found);
  for (auto& [number, hang] : hanging_queues_)
    if (seen.count(number) == 0) judge(hang, std::nullopt);
  std::erase_if(hanging_queues_, [&](const auto& one) { return seen.count(one.first) == 0; });
}

void IoWatchdog::look_at_calls() {
  const auto& blocked = calls_.look(SteadyClock().now_ns());
  for (auto& [thread, hang] : hanging_calls_)
    if (blocked.count(thread) == 0) judge(hang, std::nullopt);
  for (const auto& [thread, call] : blocked) {
    const auto in_words = [thread = thread, &call = call]() -> std::string {
      const auto described = BlockedCalls::describe(thread, call);
      return described ? with_drives(described->text, described->paths) : "";
    };
    judge(hanging_calls_[thread], Seen{.since_ns = call.since_ns,
                                       .describe = in_words,
                                       .who = "a file operation has not returned for "});
  }
  std::erase_if(hanging_calls_, [&](const auto& one) { return blocked.count(one.first) == 0; });
}

void IoWatchdog::judge(Hang& hang, const std::optional<Seen>& seen) const {
  const std::int64_t now_ns = SteadyClock().now_ns();
  // If the work in progress began later than the reported work, the reported work has returned.
  if (!hang.told.empty() && (!seen || seen->since_ns > hang.since_ns + kTogetherNs)) {
    options_.report("the drive has answered after " + in_seconds(now_ns - hang.since_ns) + ": " +
                    hang.told);
    hang = {};
  }
  if (!seen) return;
  const std::int64_t age_ns = now_ns - seen->since_ns;
  if (age_ns < std::max(limit_now_ns_, hang.told.empty() ? 0 : hang.next_report_ns)) return;
  std::string told = hang.told.empty() ? seen->describe() : hang.told;
  if (told.empty()) return;
  hang = {.since_ns = seen->since_ns, .next_report_ns = 2 * age_ns, .told = std::move(told)};
  options_.report(seen->who + in_seconds(age_ns) + ": " + hang.told +
                  ". Nothing is lost yet, and work resumes when it answers; see the kernel's log "
                  "(dmesg) for the cause");
}

}  // namespace sluice::aio
