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

// Where a call's arguments name the file.
enum class Names : std::uint8_t {
  kDescriptor,  // 0: a descriptor
  kPath,        // 0: a path
  kPathAt,      // 0: a folder's descriptor, 1: a path below it
  kTwoPaths,    // 0, 1
  kTwoPathsAt,  // 0 and 1, 2 and 3
};

struct CallKind {
  long number;
  const char* words;
  Names names;
  int length_argument = -1;
  int offset_argument = -1;
};

constexpr CallKind kCalls[] = {
#ifdef SYS_open  // newer architectures have only the calls that end in "at"
    {SYS_open, "open", Names::kPath},
    {SYS_creat, "create", Names::kPath},
    {SYS_stat, "look-up", Names::kPath},
    {SYS_lstat, "look-up", Names::kPath},
    {SYS_access, "look-up", Names::kPath},
    {SYS_readlink, "look-up", Names::kPath},
    {SYS_mkdir, "creation", Names::kPath},
    {SYS_rmdir, "removal", Names::kPath},
    {SYS_unlink, "removal", Names::kPath},
    {SYS_rename, "rename", Names::kTwoPaths},
    {SYS_link, "link", Names::kTwoPaths},
    {SYS_chmod, "change", Names::kPath},
#endif
    {SYS_openat, "open", Names::kPathAt},
    {SYS_newfstatat, "look-up", Names::kPathAt},
    {SYS_statx, "look-up", Names::kPathAt},
    {SYS_faccessat, "look-up", Names::kPathAt},
#ifdef SYS_faccessat2
    {SYS_faccessat2, "look-up", Names::kPathAt},
#endif
    {SYS_readlinkat, "look-up", Names::kPathAt},
    {SYS_fstat, "look-up", Names::kDescriptor},
    {SYS_statfs, "look-up of free space", Names::kPath},
    {SYS_fstatfs, "look-up of free space", Names::kDescriptor},
    {SYS_mkdirat, "creation", Names::kPathAt},
    {SYS_unlinkat, "removal", Names::kPathAt},
#ifdef SYS_renameat
    {SYS_renameat, "rename", Names::kTwoPathsAt},
#endif
    {SYS_renameat2, "rename", Names::kTwoPathsAt},
    {SYS_linkat, "link", Names::kTwoPathsAt},
    {SYS_fchmodat, "change", Names::kPathAt},
    {SYS_utimensat, "change", Names::kPathAt},
    {SYS_getdents64, "listing", Names::kDescriptor},
    {SYS_read, "read", Names::kDescriptor, 2},
    {SYS_readv, "read", Names::kDescriptor},
    {SYS_pread64, "read", Names::kDescriptor, 2, 3},
    {SYS_preadv, "read", Names::kDescriptor, -1, 3},
    {SYS_write, "write", Names::kDescriptor, 2},
    {SYS_writev, "write", Names::kDescriptor},
    {SYS_pwrite64, "write", Names::kDescriptor, 2, 3},
    {SYS_pwritev, "write", Names::kDescriptor, -1, 3},
    {SYS_copy_file_range, "copy", Names::kDescriptor, 4},
    {SYS_sendfile, "copy", Names::kDescriptor, 3},
    {SYS_fsync, "sync", Names::kDescriptor},
    {SYS_fdatasync, "sync", Names::kDescriptor},
    {SYS_syncfs, "sync", Names::kDescriptor},
    {SYS_sync_file_range, "sync", Names::kDescriptor},
    {SYS_fallocate, "allocation", Names::kDescriptor, 3, 2},
    {SYS_ftruncate, "resize", Names::kDescriptor, 1},
    {SYS_truncate, "resize", Names::kPath, 1},
    {SYS_fadvise64, "advice", Names::kDescriptor},
    {SYS_lseek, "look-up", Names::kDescriptor},
    {SYS_flock, "lock", Names::kDescriptor},
    {SYS_fcntl, "lock", Names::kDescriptor},
    {SYS_close, "close", Names::kDescriptor},
};

constexpr std::size_t kArguments = 6;

struct ParsedCall {
  const CallKind* kind = nullptr;
  std::array<std::uint64_t, kArguments> arguments{};
};

// "257 0xffffff9c 0x7f0b510ba1b0 0x80000 0x0 0x0 0x0 0x7f0b5194e6e8 0x7f0b50b97650": number, six
// arguments, stack, place. "running", and a number of -1 outside of calls.
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
  // The kernel's own workers (io_uring's are threads of this process) have no stack of ours.
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

// How often the thread has gone to sleep.
std::string sleeps_of(pid_t thread) {
  constexpr std::string_view kKey = "voluntary_ctxt_switches:";
  std::ifstream file(task_file(thread, "status"));
  for (std::string line; std::getline(file, line);)
    if (line.compare(0, kKey.size(), kKey) == 0) return line.substr(kKey.size());
  return {};
}

std::vector<pid_t> threads() {
  std::vector<pid_t> all;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    all.push_back(std::atoi(it->path().filename().c_str()));
  }
  return all;
}

bool is_left_out(pid_t thread) {
  const std::string name = first_line(task_file(thread, "comm"));
  return name == kPosixThread || name == kDriveLookUpThread;
}

// The text at an address of this process, which may be gone any moment: a copy by the kernel fails
// where a read of our own would be a segmentation fault.
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

// Relative to an open folder, or to the working directory. Empty: it cannot be read.
std::string path_below(std::uint64_t folder, std::uint64_t address) {
  const auto path = text_at(address);
  if (!path) return {};
  if (!path->empty() && path->front() == '/') return *path;
  const bool here = static_cast<int>(folder) == AT_FDCWD;
  const std::string base = here ? link_target("/proc/self/cwd") : path_of(folder);
  return path->empty() ? base : base + "/" + *path;
}

// Nothing that could be a drive's: "pipe:[123]", "socket:[123]", a terminal, a GPU.
bool is_elsewhere(const std::string& path) {
  const std::string_view view(path);
  if (view.empty()) return false;  // a file that has lost its name, or whose name cannot be read
  return view.front() != '/' || view.substr(0, 5) == "/dev/" || view.substr(0, 6) == "/proc/" ||
         view.substr(0, 5) == "/sys/";
}

std::string range_of(const ParsedCall& call) {
  std::string text;
  const auto number = [&](int argument) {
    return std::to_string(call.arguments.at(static_cast<std::size_t>(argument)));
  };
  if (call.kind->length_argument >= 0)
    text += " of " + number(call.kind->length_argument) + " bytes";
  if (call.kind->offset_argument >= 0) text += " at offset " + number(call.kind->offset_argument);
  return text;
}

}  // namespace

const std::map<pid_t, BlockedCalls::Blocked>& BlockedCalls::look(std::int64_t now_ns) {
  std::map<pid_t, Blocked> now;
  const pid_t self = ::gettid();
  for (const pid_t thread : threads()) {
    if (thread == self) continue;
    std::string line = first_line(task_file(thread, "syscall"));
    const auto call = parse(line);
    if (!call || is_left_out(thread)) continue;
    // Where the call names the place in the file, the same arguments are the same call.
    std::string key = call->kind->offset_argument >= 0 ? line : line + sleeps_of(thread);
    const auto before = blocked_.find(thread);
    const bool same = before != blocked_.end() && before->second.key == key;
    now[thread] = {.since_ns = same ? before->second.since_ns : now_ns,
                   .call = std::move(line),
                   .key = std::move(key)};
  }
  blocked_ = std::move(now);
  return blocked_;
}

std::optional<BlockedCalls::Call> BlockedCalls::describe(pid_t thread, const Blocked& blocked) {
  const auto call = parse(blocked.call);
  if (!call) return std::nullopt;
  const auto& arguments = call->arguments;
  Call described;
  std::string to;
  switch (call->kind->names) {
    case Names::kDescriptor:
      described.path = path_of(arguments[0]);  // of one that is being closed: none any more
      break;
    case Names::kTwoPaths:
      to = path_below(static_cast<std::uint64_t>(AT_FDCWD), arguments[1]);
      [[fallthrough]];
    case Names::kPath:
      described.path = path_below(static_cast<std::uint64_t>(AT_FDCWD), arguments[0]);
      break;
    case Names::kTwoPathsAt:
      to = path_below(arguments[2], arguments[3]);
      [[fallthrough]];
    case Names::kPathAt:
      described.path = path_below(arguments[0], arguments[1]);
      break;
  }
  // What was read from the thread's memory is the call's only if the call is still the same.
  if (first_line(task_file(thread, "syscall")) != blocked.call) return std::nullopt;
  if (is_elsewhere(described.path)) return std::nullopt;
  described.text = call->kind->words + range_of(*call) + " of " +
                   (described.path.empty() ? "a file" : described.path);
  if (!to.empty()) described.text += " to " + to;
  return described;
}

}  // namespace sluice::aio
