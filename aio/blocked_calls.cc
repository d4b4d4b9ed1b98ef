#include "aio/blocked_calls.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "aio/drive_names.h"
#include "aio/io_thread.h"

namespace sluice::aio {
namespace {

// A file that a call's arguments name.
struct FileArgument {
  enum class By : std::uint8_t { kNothing, kDescriptor, kPath, kPathAt } by = By::kNothing;
  std::size_t at = 0;  // for a path below an open folder: index of the folder's descriptor, then
                       // the path
};
using By = FileArgument::By;

constexpr FileArgument none() { return {}; }
constexpr FileArgument by_descriptor(std::size_t at) { return {By::kDescriptor, at}; }
constexpr FileArgument by_path(std::size_t at) { return {By::kPath, at}; }
constexpr FileArgument by_path_at(std::size_t at) { return {By::kPathAt, at}; }

struct CallKind {
  long number;
  const char* words;
  FileArgument file;
  FileArgument to = none();
  int length_argument = -1;
  int offset_argument = -1;
};

constexpr CallKind kCalls[] = {
#ifdef SYS_open  // newer architectures have only the calls that end in "at"
    {SYS_open, "open", by_path(0)},
    {SYS_creat, "create", by_path(0)},
    {SYS_stat, "look-up", by_path(0)},
    {SYS_lstat, "look-up", by_path(0)},
    {SYS_access, "look-up", by_path(0)},
    {SYS_readlink, "look-up", by_path(0)},
    {SYS_mkdir, "creation", by_path(0)},
    {SYS_rmdir, "removal", by_path(0)},
    {SYS_unlink, "removal", by_path(0)},
    {SYS_rename, "rename", by_path(0), by_path(1)},
    {SYS_link, "link", by_path(0), by_path(1)},
    {SYS_symlink, "creation", by_path(1)},
    {SYS_chmod, "change", by_path(0)},
#endif
    {SYS_openat, "open", by_path_at(0)},
#ifdef SYS_openat2
    {SYS_openat2, "open", by_path_at(0)},
#endif
    {SYS_newfstatat, "look-up", by_path_at(0)},
    {SYS_statx, "look-up", by_path_at(0)},
    {SYS_faccessat, "look-up", by_path_at(0)},
#ifdef SYS_faccessat2
    {SYS_faccessat2, "look-up", by_path_at(0)},
#endif
    {SYS_readlinkat, "look-up", by_path_at(0)},
    {SYS_chdir, "look-up", by_path(0)},
    {SYS_fstat, "look-up", by_descriptor(0)},
    {SYS_statfs, "look-up of free space", by_path(0)},
    {SYS_fstatfs, "look-up of free space", by_descriptor(0)},
    {SYS_mkdirat, "creation", by_path_at(0)},
    {SYS_symlinkat, "creation", by_path_at(1)},
    {SYS_unlinkat, "removal", by_path_at(0)},
#ifdef SYS_renameat
    {SYS_renameat, "rename", by_path_at(0), by_path_at(2)},
#endif
    {SYS_renameat2, "rename", by_path_at(0), by_path_at(2)},
    {SYS_linkat, "link", by_path_at(0), by_path_at(2)},
    {SYS_fchmod, "change", by_descriptor(0)},
    {SYS_fchmodat, "change", by_path_at(0)},
    {SYS_utimensat, "change", by_path_at(0)},
    {SYS_ioctl, "ioctl", by_descriptor(0)},
    {SYS_getdents64, "listing", by_descriptor(0)},
    {SYS_read, "read", by_descriptor(0), none(), 2},
    {SYS_readv, "read", by_descriptor(0)},
    {SYS_pread64, "read", by_descriptor(0), none(), 2, 3},
    {SYS_preadv, "read", by_descriptor(0), none(), -1, 3},
    {SYS_preadv2, "read", by_descriptor(0), none(), -1, 3},
    {SYS_readahead, "read", by_descriptor(0), none(), 2, 1},
    {SYS_write, "write", by_descriptor(0), none(), 2},
    {SYS_writev, "write", by_descriptor(0)},
    {SYS_pwrite64, "write", by_descriptor(0), none(), 2, 3},
    {SYS_pwritev, "write", by_descriptor(0), none(), -1, 3},
    {SYS_pwritev2, "write", by_descriptor(0), none(), -1, 3},
    {SYS_copy_file_range, "copy", by_descriptor(0), by_descriptor(2), 4},
    {SYS_sendfile, "copy", by_descriptor(1), by_descriptor(0), 3},
    {SYS_fsync, "sync", by_descriptor(0)},
    {SYS_fdatasync, "sync", by_descriptor(0)},
    {SYS_syncfs, "sync", by_descriptor(0)},
    {SYS_sync_file_range, "sync", by_descriptor(0)},
    {SYS_msync, "sync of mapped memory", none()},
    {SYS_sync, "sync of all file systems", none()},
    {SYS_fallocate, "allocation", by_descriptor(0), none(), 3, 2},
    {SYS_ftruncate, "resize", by_descriptor(0), none(), 1},
    {SYS_truncate, "resize", by_path(0), none(), 1},
    {SYS_fadvise64, "advice", by_descriptor(0)},
    {SYS_lseek, "look-up", by_descriptor(0)},
    {SYS_flock, "lock", by_descriptor(0)},
    {SYS_fcntl, "lock", by_descriptor(0)},
    {SYS_close, "close", by_descriptor(0)},
};

constexpr std::size_t kArguments = 6;

struct ParsedCall {
  const CallKind* kind = nullptr;
  std::array<std::uint64_t, kArguments> arguments{};
};

// "257 0xffffff9c 0x7f0b510ba1b0 0x80000 0x0 0x0 0x0 0x7f0b5194e6e8 0x7f0b50b97650": number, six
// arguments, stack pointer, program counter. Otherwise "running", or -1 as the number outside a
// call.
std::optional<ParsedCall> parse(const std::string& line) {
  if (line.empty() || line.front() < '0' || line.front() > '9') return std::nullopt;
  std::istringstream words(line);
  long number = -1;
  words >> number;
  ParsedCall call;
  std::string word;
  for (std::uint64_t& argument : call.arguments) {
    if (!(words >> word)) return std::nullopt;
    argument = std::strtoull(word.c_str(), nullptr, 16);
  }
  // The kernel's own workers (io_uring's are threads of this process) have no user stack.
  if (!(words >> word) || std::strtoull(word.c_str(), nullptr, 16) == 0) return std::nullopt;
  const auto* kind = std::find_if(std::begin(kCalls), std::end(kCalls),
                                  [&](const CallKind& one) { return one.number == number; });
  if (kind == std::end(kCalls)) return std::nullopt;
  call.kind = kind;
  return call;
}

std::string task_file(pid_t thread, const char* name) {
  std::string path = "/proc/self/task/";
  path.append(std::to_string(thread)).append("/").append(name);
  return path;
}

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The number of reads and writes that the thread has finished. Empty if the kernel does not count
// them.
std::string transfers_of(pid_t thread) {
  std::string counts;
  std::ifstream file(task_file(thread, "io"));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("sysc")) counts += line + "\n";  // syscr, syscw
  return counts;
}

// The thread's time outside the kernel, in clock ticks.
std::string user_time_of(pid_t thread) {
  constexpr int kFieldsBefore = 11;  // between the name, which may contain blanks, and utime
  const std::string line = first_line(task_file(thread, "stat"));
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i <= kFieldsBefore; ++i) fields >> field;
  return field;
}

std::vector<pid_t> threads() {
  std::vector<pid_t> all;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    all.push_back(static_cast<pid_t>(std::strtol(it->path().filename().c_str(), nullptr, 10)));
  }
  return all;
}

bool is_left_out(pid_t thread) {
  const std::string name = first_line(task_file(thread, "comm"));
  return name == kPosixThread || name == kDriveLookUpThread;
}

// The text at an address of this process, which may be unmapped at any moment. A copy by the kernel
// then fails, while a normal read would be a segmentation fault.
std::optional<std::string> text_at(std::uint64_t address) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::string text;
  std::array<char, PATH_MAX> part;
  while (text.size() < part.size()) {
    const std::uint64_t at = address + text.size();
    const std::size_t bytes = std::min<std::uint64_t>(page - at % page, part.size());
    const iovec here{part.data(), bytes};
    const iovec there{reinterpret_cast<void*>(at), bytes};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t got = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (got <= 0) return std::nullopt;
    const std::string_view more(part.data(), static_cast<std::size_t>(got));
    text += more.substr(0, more.find('\0'));
    if (more.find('\0') != std::string_view::npos) break;
  }
  return text;
}

std::string path_of(std::uint64_t descriptor) {
  return link_target("/proc/self/fd/" + std::to_string(static_cast<int>(descriptor)));
}

// A path relative to an open folder, or to the working directory. Empty: it cannot be read.
std::string path_below(std::uint64_t folder, std::uint64_t address) {
  const auto path = text_at(address);
  if (!path) return {};
  if (!path->empty() && path->front() == '/') return *path;
  const bool here = static_cast<int>(folder) == AT_FDCWD;
  const std::string base = here ? link_target("/proc/self/cwd") : path_of(folder);
  return path->empty() ? base : base + "/" + *path;
}

// Empty: there is no path, or it cannot be read.
std::string path_of(const ParsedCall& call, const FileArgument& file) {
  switch (file.by) {
    case By::kNothing:
      break;
    case By::kDescriptor:
      return path_of(call.arguments.at(file.at));
    case By::kPath:
      return path_below(static_cast<std::uint64_t>(AT_FDCWD), call.arguments.at(file.at));
    case By::kPathAt:
      return path_below(call.arguments.at(file.at), call.arguments.at(file.at + 1));
  }
  return {};
}

// The text of a path as the call has it; reading it accesses no file system.
std::string text_of(const ParsedCall& call, const FileArgument& file) {
  if (file.by != By::kPath && file.by != By::kPathAt) return {};
  const std::size_t at = file.at + (file.by == By::kPathAt ? 1 : 0);
  return text_at(call.arguments.at(at)).value_or("");
}

// A text that stays the same while a thread is in one call, and hardly ever from one call to the
// next. During the call the thread may wake and sleep any number of times: an unanswered RPC is
// sent again and again.
std::string key_of(pid_t thread, const std::string& line, const ParsedCall& call) {
  std::string key = line + "\n";
  for (const FileArgument& file : {call.kind->file, call.kind->to})
    key += text_of(call, file) + "\n";
  return key + transfers_of(thread);
}

// "pipe:[123]", "socket:[123]": the call waits for another process, not for a drive.
bool is_no_file(const std::string& path) { return !path.empty() && path.front() != '/'; }

// Whether it cannot be a drive's file: a terminal, a GPU. An empty path belongs to a file without a
// name, or with a name that cannot be read.
bool is_elsewhere(const std::string& path) {
  return is_no_file(path) || path.starts_with("/dev/") || path.starts_with("/proc/") ||
         path.starts_with("/sys/");
}

std::string range_of(const ParsedCall& call) {
  std::string text;
  constexpr std::uint64_t kAtItsPosition = ~std::uint64_t{0};  // for preadv2(), pwritev2()
  const auto number = [&](int argument) {
    return call.arguments.at(static_cast<std::size_t>(argument));
  };
  if (call.kind->length_argument >= 0)
    text += " of " + std::to_string(number(call.kind->length_argument)) + " bytes";
  if (call.kind->offset_argument >= 0 && number(call.kind->offset_argument) != kAtItsPosition)
    text += " at offset " + std::to_string(number(call.kind->offset_argument));
  return text;
}

}  // namespace

const std::map<pid_t, BlockedCalls::Blocked>& BlockedCalls::look(std::int64_t now_ns) {
  std::map<pid_t, Blocked> now;
  const pid_t self = ::gettid();
  for (const pid_t thread : threads()) {
    if (thread == self) continue;
    std::string line = first_line(task_file(thread, "syscall"));
    const auto before = blocked_.find(thread);
    if (line == "running") {
      // Either awake in its call for a moment, or returned: only in the second case has its user
      // time grown.
      if (before != blocked_.end() && before->second.user_time == user_time_of(thread))
        now.insert(blocked_.extract(before));
      continue;
    }
    const auto call = parse(line);
    if (!call || is_left_out(thread)) continue;
    std::string key = key_of(thread, line, *call);
    const bool same = before != blocked_.end() && before->second.key == key;
    now[thread] = {.since_ns = same ? before->second.since_ns : now_ns,
                   .call = std::move(line),
                   .key = std::move(key),
                   .user_time = user_time_of(thread)};
  }
  blocked_ = std::move(now);
  return blocked_;
}

std::optional<BlockedCalls::Call> BlockedCalls::describe(pid_t thread, const Blocked& blocked) {
  const auto call = parse(blocked.call);
  if (!call) return std::nullopt;
  Call described{.text = call->kind->words + range_of(*call), .paths = {}};
  const char* before = " of ";
  for (const FileArgument& file : {call->kind->file, call->kind->to}) {
    if (file.by == By::kNothing) continue;
    std::string path = path_of(*call, file);  // empty for a file that is being closed
    described.text += before + (path.empty() ? "a file" : path);
    described.paths.push_back(std::move(path));
    before = " to ";
  }
  // The text read from the thread's memory belongs to the call only if the thread is still in the
  // same call.
  if (first_line(task_file(thread, "syscall")) != blocked.call) return std::nullopt;
  const auto& paths = described.paths;
  if (std::any_of(paths.begin(), paths.end(), is_no_file)) return std::nullopt;
  if (!paths.empty() && std::all_of(paths.begin(), paths.end(), is_elsewhere)) return std::nullopt;
  return described;
}

}  // namespace sluice::aio
