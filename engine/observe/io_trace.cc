#include "engine/observe/io_trace.h"

namespace sluice::engine {

void IoTrace::on_end(const aio::IoRequest& request, std::int64_t end_ns) noexcept {
  const bool read = request.kind() == aio::IoKind::kRead;
  if ((!read && request.kind() != aio::IoKind::kWrite) || !request.status().ok()) return;
  log_.add({.track = read ? TraceTrack::kNvmeRead : TraceTrack::kNvmeWrite,
            .name = request.label(),
            .begin_ns = request.begin_ns(),
            .end_ns = end_ns,
            .args = {{{"bytes", static_cast<std::int64_t>(request.length_bytes())},
                      {"offset", static_cast<std::int64_t>(request.offset_bytes())}}}});
}

}  // namespace sluice::engine
