#include "aio/missing_folder.h"

#include <cerrno>
#include <filesystem>

#include "aio/machine_info.h"
#include "aio/mount_table.h"
#include "aio/text.h"

namespace sluice::aio {
namespace {

namespace fs = std::filesystem;

// The nearest existing folder above it.
std::string existing_part(FileSystem& files, const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    const auto there = files.exists(folder.string());
    if (there.ok() && *there) break;
  }
  return folder.string();
}

Error missing(FileSystem& files, const std::string& what, const std::string& path) {
  const std::string above = existing_part(files, path);
  const MountInfo mount = mount_info(above);
  std::string text = what + ": " + path + " does not exist";
  if (!mount.mount_point.empty()) {
    text += "; " + above + " does, on " +
            (mount.mount_point == "/" ? "the root file system"
                                      : "the file system mounted at " + mount.mount_point) +
            " (" + mount.device + ", " + mount.file_system + ")";
  }
  return Error(ErrorCode::kNotFound,
               text + ". Mount the intended drive, or, to use that file system, run: mkdir -p " +
                   shell_word(path));
}

}  // namespace

Status require_mounted(const std::string& what, const std::string& path) {
  return require_mounted(what, path, read_text("/etc/fstab"));
}

Status require_mounted(const std::string& what, const std::string& path, const std::string& fstab) {
  std::error_code error;
  const std::string there = fs::canonical(path, error).string();
  if (error) return {};
  const auto mounts = parse_mount_table(read_text("/proc/self/mountinfo"));
  const auto is_a_drive = [](const std::string& device) {
    std::error_code none;
    return fs::is_block_file(device, none);
  };
  const std::string point = unmounted_point(fstab, mounts, there, is_a_drive);
  if (point.empty()) return {};
  return Error(
      ErrorCode::kNotFound,
      what + ": " + path + " is a folder on the file system mounted at " +
          mount_info(there).mount_point + ", because the drive that /etc/fstab lists for " + point +
          " is not mounted. Run: mount " + shell_word(point) +
          ". To use the folder itself, mark that line noauto, or name a folder that is not below " +
          point);
}

Status require_folder(FileSystem& files, const std::string& what, const std::string& path) {
  const auto names = files.list(path);
  if (names.ok()) return {};
  const Error& error = names.error();
  if (error.error_number() == ENOTDIR) {
    return Error(ErrorCode::kInvalidArgument,
                 what + ": " + path + " is not a folder, or is below a file");
  }
  if (error.code() == ErrorCode::kNotFound) return missing(files, what, path);
  if (error.code() == ErrorCode::kPermission) return {};  // perhaps usable, though not listable
  return error;
}

}  // namespace sluice::aio
