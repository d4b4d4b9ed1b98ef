#include "tools/support/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace sluice::tools {
namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  const auto clean = [&error](const std::string& path) {
    std::string text = std::filesystem::weakly_canonical(path, error).string();
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    return text;
  };
  return !b.empty() && clean(a) == clean(b);
}

Status check_folder(const OutputFile& file) {
  const std::string folder = folder_of(file.path);
  const std::string what = file.option + " " + file.path + ": ";
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) {
    if (errno == ENOENT && is_same_folder(folder, file.made_folder)) return {};
    if (errno == ENOENT)
      return Error(ErrorCode::kNotFound,
                   what + "there is no folder " + folder + ": create it first");
    return Error::from_errno(errno, {.operation = file.option + ": look-up of", .path = folder});
  }
  if (!S_ISDIR(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, what + folder + " is not a folder");
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return Error::from_errno(errno, {.operation = file.option + ": writing into", .path = folder});
  return {};
}

}  // namespace

Status check_output_file(const OutputFile& file) {
  if (file.path.empty()) return {};
  const std::string what = file.option + " " + file.path + ": ";
  if (file.path.back() == '/')
    return Error(ErrorCode::kInvalidArgument, what + "that is a folder; give the name of a file");
  SLUICE_RETURN_IF_ERROR(check_folder(file));
  struct stat info {};
  if (::lstat(file.path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return Error::from_errno(errno, {.operation = file.option + ": look-up of", .path = file.path});
  }
  if (::stat(file.path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, what + "that is a folder; give the name of a file");
  if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, what + "that is not a regular file");
  if (!file.replaces)
    return Error(ErrorCode::kAlreadyExists,
                 what + "the file exists: choose another name, or replace it with --force");
  return {};
}

}  // namespace sluice::tools
