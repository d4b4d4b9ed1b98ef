#include "aio/real_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "aio/bounce_buffers.h"
#include "aio/log.h"
#include "aio/memory_files.h"
#include "aio/page_memory.h"
#include "aio/regular_file.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

// Offsets and lengths are multiples of this even if the drive would accept 512: it is a drive's
// physical sector, a page, and the unit of the store's formats.
constexpr std::uint32_t kSectorBytes = 4096;

constexpr std::string_view kThroughALink =
    "it is a link, and Sluice writes no file through links: remove it, or replace it by its target";

class RealFile final : public File {
 public:
  RealFile(std::string path, int descriptor, std::uint32_t offset_alignment_bytes,
           std::uint32_t memory_alignment_bytes)
      : File(std::move(path), offset_alignment_bytes, memory_alignment_bytes),
        descriptor_(descriptor) {}
  ~RealFile() override { ::close(descriptor_); }

  int descriptor() const override { return descriptor_; }

  Result<std::uint64_t> size_bytes() const override {
    struct stat info {};
    if (::fstat(descriptor_, &info) != 0) {
      return Error::from_errno(errno, {.operation = "stat", .path = path()});
    }
    return static_cast<std::uint64_t>(info.st_size);
  }

  Status allocate(std::uint64_t size_bytes) override {
    int result = 0;
    do {
      result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size_bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return {};
    return Error::from_errno(errno, {.operation = "allocation",
                                     .path = path(),
                                     .length_bytes = static_cast<std::int64_t>(size_bytes)});
  }

  Status truncate(std::uint64_t size_bytes) override {
    int result = 0;
    do {
      result = ::ftruncate(descriptor_, static_cast<off_t>(size_bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return {};
    return Error::from_errno(errno, {.operation = "resize",
                                     .path = path(),
                                     .length_bytes = static_cast<std::int64_t>(size_bytes)});
  }

 private:
  int descriptor_;
};

int open_retrying(const char* path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path, flags, 0644);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Accepts only files and block devices: reading a pipe or a terminal would wait for another
// process, perhaps forever, and a folder has no bytes. The descriptor was opened as non-blocking,
// and blocks from here on.
Status check_kind(int descriptor, const std::string& path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0)
    return Error::from_errno(errno, {.operation = "stat", .path = path});
  if (S_ISDIR(info.st_mode)) return Error::from_errno(EISDIR, {.operation = "open", .path = path});
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode))
    return Error(
        ErrorCode::kInvalidArgument,
        path + " is " +
            (S_ISFIFO(info.st_mode) ? "a pipe, not a file: save its content to a file first"
                                    : "not a regular file"));
  // With O_NONBLOCK, io_uring would return EAGAIN instead of waiting for the drive.
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) != 0)
    return Error::from_errno(errno, {.operation = "set-up of", .path = path});
  return {};
}

// An unnamed file in folder `path`: it is deleted when the last descriptor closes.
int open_anonymous(const std::string& path, int flags) {
  const int descriptor = open_retrying(path.c_str(), flags | O_TMPFILE);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return descriptor;
  }
  // For file systems without O_TMPFILE: create a named file and remove its name immediately.
  std::string name = path + "/.sluice-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

// O_NONBLOCK: opening a pipe of that name must not wait.
constexpr int kLockFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

// How often a lock is tried on a file that other processes keep replacing.
constexpr int kLockAttempts = 100;

Error lock_failed(int error_number, const std::string& path) {
  std::string_view advice;
  if (error_number == EWOULDBLOCK) advice = "another process, or this one, has locked it";
  if (error_number == ELOOP) advice = kThroughALink;
  if (error_number == ENOLCK || error_number == ENOSYS || error_number == EOPNOTSUPP) {
    advice = "its file system or the kernel refuses flock; choose a path on a local drive";
  }
  return Error::from_errno(error_number, {.operation = "lock of", .path = path}, advice);
}

// Whether `path` still leads to the open file.
Result<bool> is_still_at(int descriptor, const std::string& path) {
  struct stat held {};
  struct stat named {};
  if (::fstat(descriptor, &held) != 0) return lock_failed(errno, path);
  if (::stat(path.c_str(), &named) == 0) {
    return held.st_dev == named.st_dev && held.st_ino == named.st_ino;
  }
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return lock_failed(errno, path);
}

class RealFileLock final : public FileLock {
 public:
  explicit RealFileLock(OwnedDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Result<bool> is_at(const std::string& path) const override {
    return is_still_at(descriptor_.get(), path);
  }

 private:
  // Closing is enough. LOCK_UN would also release the lock of a parent that forked this process.
  OwnedDescriptor descriptor_;
};

struct Alignment {
  std::uint32_t offset_bytes = 1;
  std::uint32_t memory_bytes = 1;
};

// Tries one direct read: some overlays and network mounts accept the flag, then refuse every
// transfer.
bool direct_read_works(int descriptor, std::uint32_t length_bytes) {
  auto memory = PageMemory::map(length_bytes, false);
  if (!memory.ok()) return true;
  return ::pread(descriptor, memory->data(), length_bytes, 0) >= 0 || errno != EINVAL;
}

// Turns O_DIRECT on if the file supports it, and reports the required alignment. `path` is the
// file, or its folder if it has no name.
Alignment make_direct(int descriptor, const std::string& path) {
  const auto buffered = [&](const char* why) {
    struct stat info {};
    ::fstat(descriptor, &info);
    log::info_once("buffered:" + std::to_string(info.st_dev),
                   path + " " + why + ": its file system is used through the page cache");
    return Alignment{};
  };
  if (file_is_memory(descriptor)) return buffered("is in memory");
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return buffered("refuses O_DIRECT");

  Alignment alignment{kSectorBytes, kSectorBytes};
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0) {
      ::fcntl(descriptor, F_SETFL, flags);
      return buffered("cannot be read or written directly");
    }
    if (info.stx_dio_offset_align > BounceBuffers::kBytes) {
      // OpenZFS requires whole records, often 1 MiB: unaligned ends would cost more than the page
      // cache does.
      ::fcntl(descriptor, F_SETFL, flags);
      return buffered("supports direct transfers only in multiples of more than 128K");
    }
    alignment.offset_bytes = std::max(kSectorBytes, info.stx_dio_offset_align);
    alignment.memory_bytes = std::max<std::uint32_t>(1, info.stx_dio_mem_align);
  }
#endif
  if ((flags & O_ACCMODE) != O_WRONLY && !direct_read_works(descriptor, alignment.offset_bytes)) {
    ::fcntl(descriptor, F_SETFL, flags);
    return buffered("accepts O_DIRECT but refuses direct reads");
  }
  return alignment;
}

}  // namespace

Result<std::unique_ptr<File>> RealFileSystem::open(const std::string& path,
                                                   const OpenOptions& options) {
  const bool writes = options.access == OpenOptions::Access::kReadWrite;
  int flags = O_CLOEXEC | (writes ? O_RDWR : O_RDONLY);
  std::string shown_path = path;
  int descriptor = -1;
  switch (options.create) {
    case OpenOptions::Create::kMustExist:
      descriptor = open_retrying(path.c_str(), flags | O_NONBLOCK);
      break;
    case OpenOptions::Create::kMustNotExist:
      descriptor = open_retrying(path.c_str(), flags | O_CREAT | O_EXCL);
      break;
    case OpenOptions::Create::kIfMissing:
      descriptor = open_retrying(path.c_str(), flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
      break;
    case OpenOptions::Create::kAnonymous:
      descriptor = open_anonymous(path, O_CLOEXEC | O_RDWR);
      shown_path += "/(unnamed)";
      break;
  }
  if (descriptor < 0) {
    const bool creates = options.create != OpenOptions::Create::kMustExist;
    return Error::from_errno(errno, {.operation = creates ? "create" : "open", .path = path},
                             creates && errno == ELOOP ? kThroughALink : "");
  }
  // O_DIRECT is set by fcntl: if O_CREAT were combined with it, a file system that refuses O_DIRECT
  // would leave the file.
  OwnedDescriptor owned(descriptor);
  if (options.create != OpenOptions::Create::kAnonymous)
    SLUICE_RETURN_IF_ERROR(check_kind(descriptor, path));
  Alignment alignment;
  if (options.direct) alignment = make_direct(descriptor, path);
  return std::unique_ptr<File>(std::make_unique<RealFile>(
      shown_path, owned.hand_on(), alignment.offset_bytes, alignment.memory_bytes));
}

Status RealFileSystem::remove(const std::string& path) {
  if (std::remove(path.c_str()) == 0) return {};
  return Error::from_errno(errno, {.operation = "removal of", .path = path});
}

Status RealFileSystem::rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return {};
  return Error::from_errno(errno, {.operation = "rename to " + to + " of", .path = from});
}

Status RealFileSystem::make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return Error::from_errno(error.value(), {.operation = "creation of folder", .path = path});
}

Status RealFileSystem::sync_directory(const std::string& path) {
  OwnedDescriptor folder(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) {
    return Error::from_errno(errno, {.operation = "open of folder", .path = path});
  }
  if (::fsync(folder.get()) == 0) return {};
  return Error::from_errno(errno, {.operation = "sync of folder", .path = path});
}

Result<bool> RealFileSystem::exists(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return Error::from_errno(errno, {.operation = "look-up of", .path = path});
}

Result<PathKind> RealFileSystem::kind_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::kNothing;
    return Error::from_errno(errno, {.operation = "look-up of", .path = path});
  }
  if (S_ISLNK(info.st_mode)) return PathKind::kLink;
  if (S_ISDIR(info.st_mode)) return PathKind::kFolder;
  return S_ISREG(info.st_mode) ? PathKind::kFile : PathKind::kOther;
}

Result<std::vector<std::string>> RealFileSystem::list(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return Error::from_errno(error.value(), {.operation = "listing of", .path = path});
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::unique_ptr<FileLock>> RealFileSystem::lock(const std::string& path) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    OwnedDescriptor file(open_retrying(path.c_str(), kLockFlags));
    if (file.get() < 0) return lock_failed(errno, path);
    int result = 0;
    do {
      result = ::flock(file.get(), LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return lock_failed(errno, path);
    // Between open and flock the last holder may have removed the file, and another process may
    // hold the lock on a new one.
    SLUICE_ASSIGN_OR_RETURN(const bool current, is_still_at(file.get(), path));
    if (current) return std::unique_ptr<FileLock>(std::make_unique<RealFileLock>(std::move(file)));
  }
  return Error(ErrorCode::kBusy, "lock of " + path + " failed: the file was replaced " +
                                     std::to_string(kLockAttempts) +
                                     " times while it was being locked");
}

Result<std::uint64_t> RealFileSystem::free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) {
    return Error::from_errno(errno, {.operation = "look-up of free space at", .path = path});
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace sluice::aio
