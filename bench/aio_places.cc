// The part of aio_options.h that checks the machine: folders, the file, free space.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <numeric>

#include "aio/check.h"
#include "aio/units.h"
#include "bench/aio_options.h"
#include "bench/option_values.h"
#include "bench/result_file.h"

namespace sluice::bench {
namespace {

// The reason why the path cannot be examined.
std::string reason_of(int error_number, const char* wanted) {
  if (error_number == ENOENT) return std::string("there is no such ") + wanted;
  if (error_number == ENOTDIR) return "a part of the path is a file, not a folder";
  if (error_number == EACCES || error_number == EPERM) return "no permission";
  if (error_number == EROFS) return "is on a read-only file system";
  const char* text = strerrordesc_np(error_number);
  return text != nullptr ? text : "cannot be reached";
}

Status check_folder(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return wrong("--path", path, reason_of(errno, "folder"));
  if (!S_ISDIR(status.st_mode))
    return wrong("--path", path, "is a file; give a folder, or measure this file with --file");
  if (access(path.c_str(), W_OK | X_OK) != 0)
    return wrong("--path", path, reason_of(errno, "folder") + ", so no file can be created there");
  return {};
}

// Paths may share a drive, so compares the space needed on each file system with its free space.
Status check_space(aio::FileSystem& files, const AioOptions& options) {
  struct Share {
    std::uint64_t bytes = 0;
    std::string path;
  };
  std::map<dev_t, Share> shares;
  const int total = std::accumulate(options.weights.begin(), options.weights.end(), 0);
  SLUICE_CHECK(total > 0, "every path has a weight");
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    struct stat status {};
    if (stat(options.paths[i].c_str(), &status) != 0) continue;
    Share& share = shares[status.st_dev];
    share.bytes += options.size_bytes / static_cast<std::uint64_t>(total) *
                   static_cast<std::uint64_t>(options.weights[i]);
    share.path = options.paths[i];
  }
  for (const auto& [device, share] : shares) {
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free, files.free_bytes(share.path));
    if (share.bytes > free)
      return Error(ErrorCode::kNoSpace, "--size " + format_bytes(options.size_bytes) + ": needs " +
                                            format_bytes(share.bytes) + " at " + share.path +
                                            ", where " + format_bytes(free) +
                                            " are free; give a smaller --size or another --path");
  }
  return {};
}

Status check_file(AioOptions& options, std::vector<std::string>& notes) {
  struct stat status {};
  const std::string& path = options.file;
  if (stat(path.c_str(), &status) != 0) return wrong("--file", path, reason_of(errno, "file"));
  if (!S_ISREG(status.st_mode))
    return wrong("--file", path,
                 S_ISDIR(status.st_mode) ? "is a folder; give a file, or use --path"
                                         : "is not a regular file");
  if (access(path.c_str(), options.writes_to_file() ? R_OK | W_OK : R_OK) != 0)
    return wrong("--file", path, reason_of(errno, "file"));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == 0) return wrong("--file", path, "is empty; make it as large as needed for the test");
  if (options.size_bytes > size)
    return wrong("--size", format_bytes(options.size_bytes),
                 "the file " + path + " has only " + format_bytes(size));
  if (options.size_bytes == 0) options.size_bytes = size;
  if (static_cast<std::uint64_t>(status.st_blocks) * 512 < size)
    notes.push_back(path + " has holes, whose reads do not reach the drive");
  // Otherwise the first direct transfers would write back or drop what the page cache still holds.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) {
    fdatasync(descriptor);
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }
  return {};
}

Status check_result(const ResultFile& file, std::vector<std::string>& notes) {
  SLUICE_RETURN_IF_ERROR(file.check());
  if (const std::string note = file.note(); !note.empty()) notes.push_back(note);
  return {};
}

}  // namespace

Status check_places(aio::FileSystem& files, AioOptions& options, std::vector<std::string>& notes) {
  using Kind = ResultFile::Kind;
  if (!options.json.empty())
    SLUICE_RETURN_IF_ERROR(check_result({"--json", options.json, Kind::kMeasurement}, notes));
  if (!options.out.empty())
    SLUICE_RETURN_IF_ERROR(check_result({"--out", options.out, Kind::kAioSection}, notes));
  if (options.file.empty()) {
    for (const std::string& path : options.paths) SLUICE_RETURN_IF_ERROR(check_folder(path));
  } else {
    SLUICE_RETURN_IF_ERROR(check_file(options, notes));
  }
  // A sweep chooses its own block sizes unless one is given, and fits each to the file.
  const bool one_block_size = !options.sweep || !options.sweep_block;
  if (one_block_size && options.block_bytes > options.size_bytes)
    return wrong("--block-size", format_bytes(options.block_bytes),
                 "is larger than the file, which has " + format_bytes(options.size_bytes));
  const std::uint64_t granule = one_block_size ? options.block_bytes : 4 * kKiB;
  if (const std::uint64_t rest = options.size_bytes % granule; rest != 0) {
    options.size_bytes -= rest;
    notes.push_back("measuring " + std::to_string(options.size_bytes) +
                    " bytes, the whole blocks of " + format_bytes(granule) + " in " +
                    std::to_string(options.size_bytes + rest));
  }
  if (options.size_bytes == 0) return wrong("--file", options.file, "is smaller than one sector");
  if (options.file.empty()) SLUICE_RETURN_IF_ERROR(check_space(files, options));
  return {};
}

}  // namespace sluice::bench
