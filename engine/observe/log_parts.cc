#include "engine/observe/log_parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "aio/regular_file.h"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;

constexpr int kMostTries = 5;  // a part is renamed once in many thousand lines

std::string part_path(const std::string& path, int number) {
  return path + "." + std::to_string(number);
}

// The number of a part such as "metrics.jsonl.12", with the prefix "metrics.jsonl."; 0: not a part.
int number_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  const std::string_view digits = name.substr(prefix.size());
  int number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = read.ec == std::errc() && read.ptr == digits.data() + digits.size();
  return whole && number > 0 && digits.front() != '0' ? number : 0;
}

// Identifies the files by their inodes.
std::vector<std::pair<dev_t, ino_t>> identities(const std::vector<std::string>& parts) {
  std::vector<std::pair<dev_t, ino_t>> all;
  for (const std::string& part : parts) {
    struct stat info {};
    if (::stat(part.c_str(), &info) == 0) all.emplace_back(info.st_dev, info.st_ino);
  }
  return all;
}

Status renamed(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return Error::from_errno(errno, {.operation = "rename", .path = from});
}

bool is_file_of(const std::string& path, int descriptor) {
  struct stat there {};
  struct stat ours {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(descriptor, &ours) == 0 &&
         there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

bool is_link(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

// Renames parts only up to the first missing number, which a crash may have left.
Status make_room_for_first(const std::string& path) {
  int free = 1;
  while (exists(part_path(path, free))) ++free;
  for (int number = free - 1; number >= 1; --number)
    SLUICE_RETURN_IF_ERROR(renamed(part_path(path, number), part_path(path, number + 1)));
  return {};
}

}  // namespace

std::vector<std::string> log_parts(const std::string& path) {
  const fs::path file(path);
  const std::string prefix = file.filename().string() + ".";
  std::vector<int> numbers;
  std::error_code error;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // a file without a readable status is not a part
    const int number = number_of(entry->path().filename().string(), prefix);
    if (number > 0 && !entry->is_symlink(ignored) && entry->is_regular_file(ignored))
      numbers.push_back(number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  std::vector<std::string> parts;
  parts.reserve(numbers.size() + 1);
  for (const int number : numbers) parts.push_back(part_path(path, number));
  if (::access(path.c_str(), F_OK) == 0 || errno != ENOENT) parts.push_back(path);
  return parts;
}

Status visit_log_parts(const std::string& path, const std::function<void()>& begin,
                       const std::function<Status(const std::string& part)>& read) {
  for (int tries = 1;; ++tries) {
    const std::vector<std::string> parts = log_parts(path);
    const auto before = identities(parts);
    begin();
    Status status = parts.empty() ? read(path) : Status();
    for (const std::string& part : parts) {
      status = read(part);
      if (!status.ok()) break;
    }
    if (tries == kMostTries || identities(log_parts(path)) == before) return status;
  }
}

Result<int> begin_log_part(const std::string& path, int descriptor, int flags) {
  if (!is_file_of(path, descriptor))
    return Error(ErrorCode::kNotFound, path + " is no longer the file that was opened");
  if (is_link(path)) return Error(ErrorCode::kUnsupported, path + " is a link: it has one part");
  const std::string made = path + ".new";
  SLUICE_ASSIGN_OR_RETURN(aio::OwnedDescriptor opened, aio::make_fresh(made, O_WRONLY | flags));
  const std::string first = part_path(path, 1);
  Status put = make_room_for_first(path);
  if (put.ok()) put = renamed(path, first);
  if (put.ok()) {
    put = renamed(made, path);
    if (!put.ok()) static_cast<void>(renamed(first, path));
  }
  if (put.ok()) return opened.hand_on();
  ::unlink(made.c_str());
  return std::move(put).error();
}

}  // namespace sluice::engine
