#include "aio/io_backend.h"

namespace sluice::aio {

std::string_view to_string(IoKind kind) {
  switch (kind) {
    case IoKind::kRead:
      return "read";
    case IoKind::kWrite:
      return "write";
    case IoKind::kSync:
      return "sync";
    case IoKind::kNop:
      return "no-op";
  }
  return "unknown operation";
}

}  // namespace sluice::aio
