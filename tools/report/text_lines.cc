#include "tools/report/text_lines.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "aio/regular_file.h"

namespace sluice::report {
void LineSplitter::end_line(std::string_view rest, bool ended) {
  if (passes_over_ || begun_.size() + rest.size() > kMostLineBytes) {
    ++too_long_;
  } else if (!begun_.empty() || !rest.empty()) {
    begun_.append(rest);
    visit_({.text = begun_, .ended = ended});
  }
  begun_.clear();
  passes_over_ = false;
}

void LineSplitter::feed(std::string_view text) {
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    end_line(text.substr(0, end), true);
    text.remove_prefix(end + 1);
  }
  if (begun_.size() + text.size() > kMostLineBytes) {
    begun_.clear();
    passes_over_ = true;
  } else if (!passes_over_) {
    begun_.append(text);
  }
}

void LineSplitter::finish() {
  if (has_begun()) end_line({}, false);
}

Result<std::int64_t> read_lines(const std::string& path,
                                const std::function<void(const TextLine&)>& visit) {
  SLUICE_ASSIGN_OR_RETURN(const aio::OwnedDescriptor file, aio::open_inside(path));
  std::vector<char> block(std::size_t{1} << 20);
  LineSplitter lines(visit);
  while (true) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, {.operation = "read", .path = path});
    if (got == 0) break;
    lines.feed({block.data(), static_cast<std::size_t>(got)});
  }
  lines.finish();
  return lines.too_long();
}

}  // namespace sluice::report
