#include "engine/observe/event_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "aio/regular_file.h"
#include "engine/observe/log_parts.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) /
         1e3;
}

EventLog::~EventLog() {
  static_cast<void>(flush());
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status EventLog::open(const std::string& path, std::uint64_t part_bytes) {
  path_ = path;
  part_bytes_ = part_bytes;
  SLUICE_ASSIGN_OR_RETURN(aio::OwnedDescriptor file,
                          aio::open_itself(path, O_RDWR | O_CREAT | O_APPEND));
  descriptor_ = file.hand_on();
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0)
    return Error::from_errno(errno, {.operation = "look at", .path = path});
  size_bytes_ = static_cast<std::uint64_t>(info.st_size);
  char last = '\n';
  if (info.st_size > 0 && ::pread(descriptor_, &last, 1, info.st_size - 1) != 1) last = '\n';
  if (last != '\n') {
    const std::lock_guard lock(mutex_);
    waiting_.insert(0, 1, '\n');
  }
  return {};
}

void EventLog::note(std::string_view kind, std::int64_t step, std::string_view members) {
  std::string line = "{\"event\":" + text_of(kind) + ",\"unix_s\":" + text_of(unix_seconds()) +
                     ",\"step\":" + std::to_string(step);
  if (!members.empty()) line.append(",").append(members);
  line += "}\n";
  if (listener_) listener_(line);
  const std::lock_guard lock(mutex_);
  if (waiting_.size() + line.size() > kMostWaitingBytes)
    ++lost_events_;
  else
    waiting_ += line;
}

std::string EventLog::member(std::string_view key, std::string_view text) {
  return text_of(key) + ":" + text_of(text);
}

Status EventLog::flush() {
  if (descriptor_ < 0) return {};
  std::string lines;
  {
    const std::lock_guard lock(mutex_);
    lines.swap(waiting_);
  }
  if (part_bytes_ > 0 && !in_line_ && size_bytes_ > 0 && !lines.empty() &&
      size_bytes_ + lines.size() > part_bytes_)
    begin_part();
  std::size_t done = 0;
  Status status;
  while (done < lines.size() && status.ok()) {
    const ssize_t written = ::write(descriptor_, lines.data() + done, lines.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0)
      done += static_cast<std::size_t>(written);
    else
      status = Error::from_errno(written < 0 ? errno : EIO, {.operation = "write", .path = path_});
  }
  size_bytes_ += done;
  if (done > 0) in_line_ = lines[done - 1] != '\n';
  if (done < lines.size()) {
    const std::lock_guard lock(mutex_);
    waiting_.insert(0, lines, done);
  }
  return status;
}

// If this fails, the file keeps growing: events are for people, and never stop a run.
void EventLog::begin_part() {
  const auto begun = begin_log_part(path_, descriptor_, O_APPEND);
  if (!begun.ok()) return;
  ::close(std::exchange(descriptor_, *begun));
  size_bytes_ = 0;
}

std::int64_t EventLog::lost_events() const {
  const std::lock_guard lock(mutex_);
  return lost_events_;
}

}  // namespace sluice::engine
