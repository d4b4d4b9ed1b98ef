#include "aio/bounce_buffers.h"

#include <utility>

#include "aio/check.h"

namespace sluice::aio {

Result<BounceBuffers> BounceBuffers::create() {
  SLUICE_ASSIGN_OR_RETURN(auto memory, PageMemory::map(kCount * kBytes, false));
  return BounceBuffers(std::move(memory));
}

int BounceBuffers::take(const Use& use) {
  SLUICE_CHECK(use.end_bytes - use.begin_bytes <= kBytes,
               "a file system asks for sectors larger than a bounce buffer");
  int free = -1;
  for (int i = 0; i < kCount; ++i) {
    const Use& other = uses_[static_cast<std::size_t>(i)];
    if (other.file == nullptr) {
      free = i;
    } else if (use.exclusive && other.exclusive && other.file == use.file &&
               other.begin_bytes < use.end_bytes && use.begin_bytes < other.end_bytes) {
      return -1;
    }
  }
  if (free >= 0) uses_[static_cast<std::size_t>(free)] = use;
  return free;
}

void BounceBuffers::give_back(int number) { uses_[static_cast<std::size_t>(number)] = {}; }

std::byte* BounceBuffers::data(int number) const {
  return memory_.data() + static_cast<std::uint64_t>(number) * kBytes;
}

}  // namespace sluice::aio
