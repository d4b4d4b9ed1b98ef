#include "bench/result_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "aio/bounded_json.h"

namespace sluice::bench {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status write_all(int descriptor, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error::from_errno(errno, {.operation = "write to", .path = path});
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status write_temporary(int descriptor, std::string_view text, const std::string& path) {
  SLUICE_RETURN_IF_ERROR(write_all(descriptor, text, path));
  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(descriptor, 0666 & ~mask) != 0 || fsync(descriptor) != 0)
    return Error::from_errno(errno, {.operation = "sync of", .path = path});
  return {};
}

bool is_ours(const nlohmann::json& json, ResultFile::Kind kind) {
  if (!json.is_object()) return false;
  if (kind == ResultFile::Kind::kAioSection) return json.size() == 1 && json.contains("aio");
  return json.contains("version") && json.contains("machine");
}

// A link stays, and its target is replaced.
std::string follow_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? real.get() : path;
}

}  // namespace

ResultFile::ResultFile(std::string option, std::string path, Kind kind)
    : option_(std::move(option)), path_(std::move(path)), shown_path_(path_), kind_(kind) {
  if (path_ != "-") path_ = follow_links(path_);
}

Status ResultFile::check() const {
  const auto wrong = [this](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, option_ + " " + shown_path_ + ": " + why);
  };
  if (path_ == "-") return {};
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return wrong("is a folder; give the name of a file");
    if (access(path_.c_str(), W_OK) != 0)
      return wrong(errno == EROFS ? "is on a read-only file system" : "may not be written");
    if (!S_ISREG(status.st_mode)) return {};
    if (status.st_size > 0) {
      std::ifstream in(path_);
      const std::string text(std::istreambuf_iterator<char>(in), {});
      if (!is_ours(json_or_discarded<nlohmann::json>(text), kind_))
        return wrong("exists and is not an earlier result; choose another name or remove it");
    }
  } else if (errno != ENOENT) {
    return Error::from_errno(errno, {.operation = option_ + ": look-up of", .path = path_});
  }
  const std::string folder = folder_of(path_);
  if (access(folder.c_str(), F_OK) != 0) return wrong("there is no folder " + folder);
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return wrong(errno == EROFS ? "is on a read-only file system"
                                : "the folder " + folder + " may not be written");
  return {};
}

std::string ResultFile::note() const {
  struct stat status {};
  if (path_ == "-" || stat(path_.c_str(), &status) != 0) return "";
  if (!S_ISREG(status.st_mode) || status.st_size == 0) return "";
  return option_ + " " + shown_path_ + ": the earlier result there will be replaced";
}

Status ResultFile::write(std::string_view text) const {
  if (path_ == "-") return write_all(STDOUT_FILENO, text, "standard output");
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    const int device = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (device < 0) return Error::from_errno(errno, {.operation = "open", .path = path_});
    Status written = write_all(device, text, path_);
    close(device);
    return written;
  }
  std::string name = path_ + ".XXXXXX";
  const int descriptor = mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0)
    return Error::from_errno(errno, {.operation = "creation of a file:", .path = name});
  Status status_of_write = write_temporary(descriptor, text, path_);
  close(descriptor);
  if (status_of_write.ok() && rename(name.c_str(), path_.c_str()) != 0)
    status_of_write = Error::from_errno(errno, {.operation = "rename to", .path = path_});
  if (!status_of_write.ok()) unlink(name.c_str());
  return status_of_write;
}

Status check_trace_file(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    return Error(ErrorCode::kAlreadyExists,
                 path + " already exists: name another file for the trace, or remove it");
  }
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Error(ErrorCode::kNotFound, "there is no folder " + folder +
                                           " for the trace: create it, or name another file");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    return Error(ErrorCode::kPermission,
                 "the folder " + folder + " cannot be written: name another file for the trace");
  }
  return {};
}

}  // namespace sluice::bench
