#include "tools/watch/file_follower.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "aio/regular_file.h"
#include "engine/observe/log_parts.h"

namespace sluice::watch {
namespace {

constexpr std::size_t kBefore = 64;
constexpr std::size_t kBlock = std::size_t{256} << 10;

}  // namespace

class FileFollower::OpenFile {
 public:
  explicit OpenFile(const std::string& path) : path_(path), file_(aio::open_inside(path)) {
    if (file_.ok() && ::fstat(file_->get(), &info_) != 0)
      file_ = Error::from_errno(errno, {.operation = "look at", .path = path_});
  }

  bool is_missing() const {
    return !file_.ok() &&
           (file_.error().error_number() == ENOENT || file_.error().error_number() == ENOTDIR);
  }
  Status status() const { return file_.status(); }
  Identity identity() const { return {.device = info_.st_dev, .inode = info_.st_ino}; }
  std::int64_t size_bytes() const { return info_.st_size; }
  Result<std::size_t> read_at(std::int64_t offset_bytes, char* into, std::size_t bytes) const {
    for (;;) {
      const ssize_t got = ::pread(file_->get(), into, bytes, offset_bytes);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) return Error::from_errno(errno, {.operation = "read", .path = path_});
    }
  }

 private:
  std::string path_;
  Result<aio::OwnedDescriptor> file_;
  struct stat info_ {};
};

FileFollower::FileFollower(std::string path, Sink sink)
    : path_(std::move(path)), sink_(std::move(sink)), lines_(sink_.line) {}

// Whether `file` is the one that was read last, with the same content so far.
bool FileFollower::continues(const OpenFile& file) const {
  if (!identity_ || file.identity() != *identity_ || file.size_bytes() < offset_bytes_)
    return false;
  std::string there(before_.size(), '\0');
  const auto got = file.read_at(offset_bytes_ - static_cast<std::int64_t>(there.size()),
                                there.data(), there.size());
  return got.ok() && *got == there.size() && there == before_;
}

Status FileFollower::read_rest(const OpenFile& file) {
  identity_ = file.identity();
  std::vector<char> block(kBlock);
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const std::size_t got,
                            file.read_at(offset_bytes_, block.data(), block.size()));
    if (got == 0) return {};
    const std::string_view text(block.data(), got);
    offset_bytes_ += static_cast<std::int64_t>(got);
    before_.append(text.substr(got - std::min(got, kBefore)));
    before_.erase(0, before_.size() - std::min(before_.size(), kBefore));
    has_read_ = true;
    lines_.feed(text);
  }
}

// Reads the whole part, after the parts before it.
Status FileFollower::read_part(const std::string& part) {
  const OpenFile file(part);
  if (part == path_ && file.is_missing()) return {};
  SLUICE_RETURN_IF_ERROR(file.status());
  lines_.finish();
  offset_bytes_ = 0;
  before_.clear();
  return read_rest(file);
}

void FileFollower::begin_anew() {
  identity_.reset();
  offset_bytes_ = 0;
  before_.clear();
  lines_ = report::LineSplitter(sink_.line);
  if (std::exchange(has_read_, false)) sink_.restart();
}

Status FileFollower::poll() {
  const OpenFile file(path_);
  if (!file.is_missing()) SLUICE_RETURN_IF_ERROR(file.status());
  if (!file.is_missing() && continues(file)) return read_rest(file);
  if (identity_) {
    const OpenFile moved(path_ + ".1");
    if (moved.status().ok() && continues(moved)) {
      SLUICE_RETURN_IF_ERROR(read_rest(moved));
      if (file.is_missing()) return {};  // the next part is about to be created
      lines_.finish();
      offset_bytes_ = 0;
      before_.clear();
      return read_rest(file);
    }
  }
  return engine::visit_log_parts(
      path_, [this] { begin_anew(); }, [this](const std::string& part) { return read_part(part); });
}

}  // namespace sluice::watch
