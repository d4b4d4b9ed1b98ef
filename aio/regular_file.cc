#include "aio/regular_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "aio/check.h"

namespace sluice::aio {
namespace {

constexpr mode_t kMode = 0666;  // less the umask

int retried(const std::function<int()>& open) {
  int descriptor = -1;
  do {
    descriptor = open();
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

bool is_link_at(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

Error open_failed(int error_number, const std::string& path, int flags) {
  if (error_number == ENXIO)  // a pipe without a reader
    return {ErrorCode::kInvalidArgument, path + " is not a regular file"};
  return Error::from_errno(error_number,
                           {.operation = (flags & O_CREAT) != 0 ? "create" : "open", .path = path});
}

bool has_other_names(const OwnedDescriptor& file) {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 && info.st_nlink > 1;
}

Status copy_all(int from, int to, const std::string& path) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  for (;;) {
    const ssize_t copied = ::sendfile(to, from, nullptr, kMostAtOnce);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return Error::from_errno(errno, {.operation = "copy of", .path = path});
    if (copied == 0) break;
  }
  if (::fsync(to) == 0) return {};
  return Error::from_errno(errno, {.operation = "sync of", .path = path});
}

// Replaces `file`, which has other names, by a copy: those names will not see what is written.
Result<OwnedDescriptor> replaced_by_copy(const OwnedDescriptor& file, const std::string& path,
                                         int flags) {
  const std::string fresh = path + ".new";
  const auto from = open_itself(path, O_RDONLY);
  SLUICE_RETURN_IF_ERROR(from.status());
  SLUICE_ASSIGN_OR_RETURN(OwnedDescriptor copy, make_fresh(fresh, flags & ~O_APPEND));
  struct stat info {};
  Status copied = ::fstat(file.get(), &info) == 0 ? copy_all(from->get(), copy.get(), path)
                                                  : Status(open_failed(errno, path, flags));
  if (copied.ok() && (::fchmod(copy.get(), info.st_mode & 07777) != 0 ||
                      ::fcntl(copy.get(), F_SETFL, flags & O_APPEND) != 0 ||
                      ::rename(fresh.c_str(), path.c_str()) != 0))
    copied = Error::from_errno(errno, {.operation = "replacement of", .path = path});
  if (copied.ok()) return copy;
  ::unlink(fresh.c_str());
  return std::move(copied).error();
}

// Opening a pipe or a device does not block; from here on a regular file's descriptor does.
Result<OwnedDescriptor> checked(int descriptor, const std::string& path) {
  OwnedDescriptor owned(descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0)
    return Error::from_errno(errno, {.operation = "look-up of", .path = path});
  if (!S_ISREG(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, path + " is not a regular file");
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) != 0)
    return Error::from_errno(errno, {.operation = "set-up of", .path = path});
  return owned;
}

// "a/b" -> {"a", "b"}.
std::pair<std::string, std::string> split(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

// -1 with ENOSYS if the kernel or a system call filter does not support openat2().
int open_beneath(int folder, const std::string& name) {
  struct open_how how {};
  how.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const int opened =
      static_cast<int>(::syscall(SYS_openat2, folder, name.c_str(), &how, sizeof how));
  if (opened < 0 && errno == EPERM) errno = ENOSYS;
  return opened;
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<OwnedDescriptor> open_itself(const std::string& path, int flags) {
  // The file's other names would lose their content, too.
  SLUICE_CHECK((flags & O_TRUNC) == 0, "a file is made afresh by make_fresh()");
  const int opened = retried([&] {
    return ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, kMode);
  });
  const int error_number = errno;
  if (opened >= 0) {
    SLUICE_ASSIGN_OR_RETURN(OwnedDescriptor file, checked(opened, path));
    const bool appends = (flags & O_ACCMODE) != O_RDONLY && (flags & O_EXCL) == 0;
    return appends && has_other_names(file) ? replaced_by_copy(file, path, flags & ~O_CREAT)
                                            : std::move(file);
  }
  if (error_number == ELOOP && is_link_at(path))
    return Error(ErrorCode::kInvalidArgument, path +
                                                  " is a link, and Sluice opens no file through "
                                                  "links: remove it, or replace it by its target");
  return open_failed(error_number, path, flags);
}

Result<OwnedDescriptor> make_fresh(const std::string& path, int flags) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return Error::from_errno(errno, {.operation = "removal of", .path = path});
  return open_itself(path, flags | O_CREAT | O_EXCL);
}

Result<OwnedDescriptor> open_inside(const std::string& path) {
  const auto [folder_path, name] = split(path);
  const OwnedDescriptor folder(
      retried([&, where = folder_path] { return ::open(where.c_str(), O_PATH | O_CLOEXEC); }));
  if (folder.get() < 0) return open_failed(errno, path, O_RDONLY);
  int opened = retried([&, file = name] { return open_beneath(folder.get(), file); });
  if (opened < 0 && errno == ENOSYS)
    opened = retried([&, file = name] {
      return ::openat(folder.get(), file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    });
  if (opened >= 0) return checked(opened, path);
  const int error_number = errno;
  if ((error_number == EXDEV || error_number == ELOOP) && is_link_at(path))
    return Error(ErrorCode::kInvalidArgument,
                 path + (error_number == EXDEV
                             ? " is a link to a file outside of the run's folder: it is not read"
                             : " is a link, which is not followed"));
  return open_failed(error_number, path, O_RDONLY);
}

}  // namespace sluice::aio
