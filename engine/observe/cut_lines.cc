#include "engine/observe/cut_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aio/bounded_json.h"
#include "aio/regular_file.h"

namespace sluice::engine {
namespace {

// Without a torn part.
Result<std::string> lines_behind(const std::string& path, std::uint64_t begin_bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, {.operation = "open", .path = path});
  file.seekg(static_cast<std::streamoff>(begin_bytes));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return Error::from_errno(EIO, {.operation = "read", .path = path});
  const std::size_t last = text.rfind('\n') + 1;  // 0 where there is none
  if (last < text.size()) {
    if (read_json<nlohmann::json>(std::string_view(text).substr(last)).ok())
      text += '\n';
    else
      text.resize(last);
  }
  return text;
}

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ::ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return Error::from_errno(written < 0 ? errno : EIO,
                               {.operation = "write",
                                .path = path,
                                .length_bytes = static_cast<std::int64_t>(text.size())});
    done += static_cast<std::size_t>(written);
  }
  if (::fsync(descriptor) == 0) return {};
  return Error::from_errno(errno, {.operation = "sync", .path = path});
}

Status append(int descriptor, const std::string& text, const std::string& path) {
  struct stat before {};
  if (::fstat(descriptor, &before) != 0)
    return Error::from_errno(errno, {.operation = "look-up of", .path = path});
  Status written = write_all(descriptor, text, path);
  if (written.ok() || ::ftruncate(descriptor, before.st_size) == 0) return written;
  return std::move(written).error().with_suffix("; its last line may be torn");
}

}  // namespace

Result<std::int64_t> keep_lines(const std::string& from, std::uint64_t begin_bytes,
                                const std::string& to) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, lines_behind(from, begin_bytes));
  if (text.empty()) return std::int64_t{0};
  SLUICE_ASSIGN_OR_RETURN(const aio::OwnedDescriptor file,
                          aio::open_itself(to, O_WRONLY | O_CREAT | O_APPEND));
  SLUICE_RETURN_IF_ERROR(append(file.get(), text, to));
  return static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string cut_lines_path(const std::string& path) {
  std::filesystem::path cut(path);
  cut.replace_filename(cut.stem().string() + "-cut" + cut.extension().string());
  return cut.string();
}

}  // namespace sluice::engine
