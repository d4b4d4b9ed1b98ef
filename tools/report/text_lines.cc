#include "tools/report/text_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace sluice::report {
namespace {

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

Result<std::int64_t> read_lines(const std::string& path,
                                const std::function<void(const TextLine&)>& visit) {
  const OpenFile file(path);
  if (file.descriptor() < 0) return Error::from_errno(errno, {.operation = "open", .path = path});
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0)
    return Error::from_errno(errno, {.operation = "look at", .path = path});
  if (!S_ISREG(info.st_mode))
    return Error(ErrorCode::kInvalidArgument, path + " is not a regular file");

  std::vector<char> block(std::size_t{1} << 20);
  std::string begun;  // of a line whose end has not been seen
  std::int64_t number = 1;
  std::int64_t too_long = 0;
  bool passes_over = false;
  const auto end_line = [&](std::string_view rest, bool ended) {
    if (passes_over || begun.size() + rest.size() > kMostLineBytes) {
      ++too_long;
    } else if (!begun.empty() || !rest.empty()) {
      begun.append(rest);
      visit({.number = number, .text = begun, .ended = ended});
    }
    begun.clear();
    passes_over = false;
    ++number;
  };
  while (true) {
    const ssize_t got = ::read(file.descriptor(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, {.operation = "read", .path = path});
    if (got == 0) break;
    std::string_view text(block.data(), static_cast<std::size_t>(got));
    for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
      end_line(text.substr(0, end), true);
      text.remove_prefix(end + 1);
    }
    if (begun.size() + text.size() > kMostLineBytes) {
      begun.clear();
      passes_over = true;
    } else if (!passes_over) {
      begun.append(text);
    }
  }
  if (!begun.empty() || passes_over) end_line({}, false);
  return too_long;
}

}  // namespace sluice::report
