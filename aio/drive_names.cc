#include "aio/drive_names.h"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "aio/io_thread.h"
#include "aio/machine_info.h"

namespace sluice::aio {
namespace {

constexpr std::chrono::seconds kPatience{1};
constexpr int kMostLinks = 40;  // the kernel's own limit

// The progress of a walk along a path, shared by the waiting caller and a thread that may never
// return.
struct Walk {
  std::mutex mutex;
  std::condition_variable changed;
  std::string place;  // guarded by mutex, like the next
  bool ended = false;

  void publish(const std::string& now, bool end) {
    const std::lock_guard lock(mutex);
    place = now;
    ended = end;
    changed.notify_all();
  }
};

std::deque<std::string> parts_of(const std::string& path) {
  std::deque<std::string> parts;
  std::istringstream text(path);
  for (std::string part; std::getline(text, part, '/');) parts.push_back(part);
  return parts;
}

void follow(const std::string& path, Walk& walk) {
  std::string place = path.front() == '/' ? "" : link_target("/proc/self/cwd");
  std::deque<std::string> parts = parts_of(path);
  int links = 0;
  while (!parts.empty()) {
    const std::string part = std::move(parts.front());
    parts.pop_front();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      place.erase(place.empty() ? 0 : place.rfind('/'));
      continue;
    }
    std::string next = place;
    next.append("/").append(part);
    walk.publish(next, false);
    const std::string target = links < kMostLinks ? link_target(next) : "";
    if (target.empty()) {
      place = next;
      continue;
    }
    ++links;
    if (target.front() == '/') place.clear();
    const std::deque<std::string> more = parts_of(target);
    parts.insert(parts.begin(), more.begin(), more.end());
  }
  walk.publish(place.empty() ? "/" : place, true);
}

// `path` without symbolic links, or the place where resolving it hangs.
std::string place_of(const std::string& path) {
  const auto walk = std::make_shared<Walk>();
  walk->place = path;
  try {
    const SignalsBlocked signals_blocked;
    std::thread([walk, path] {
      name_this_thread(kDriveLookUpThread);
      follow(path, *walk);
    }).detach();
  } catch (const std::system_error&) {
    return path;
  }
  std::unique_lock lock(walk->mutex);
  walk->changed.wait_for(lock, kPatience, [&] { return walk->ended; });
  return walk->place;
}

}  // namespace

std::string link_target(const std::string& path) {
  std::array<char, PATH_MAX> target;
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

std::string describe_drive(const std::string& path) {
  if (path.empty()) return {};
  std::ostringstream mounts;
  mounts << std::ifstream("/proc/self/mountinfo").rdbuf();
  const MountInfo mount = find_mount(mounts.str(), "", place_of(path));
  if (mount.mount_point.empty()) return {};
  return mount.device + " (" + mount.file_system + ", mounted at " + mount.mount_point + ")";
}

}  // namespace sluice::aio
