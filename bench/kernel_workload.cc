#include "bench/kernel_workload.h"

#include <utility>

namespace sluice::bench {
namespace {

constexpr std::uint64_t kLineBytes = 64;

}  // namespace

Result<std::byte*> KernelWorkload::map(std::uint64_t bytes) {
  const std::uint64_t offset_bytes =
      memory_.size() * static_cast<std::uint64_t>(stagger_lines_) * kLineBytes;
  SLUICE_ASSIGN_OR_RETURN(aio::PageMemory memory,
                          aio::PageMemory::map(bytes + offset_bytes, true, executor_));
  memory_.push_back(std::move(memory));
  return memory_.back().data() + offset_bytes;
}

float KernelWorkload::noise(std::uint64_t i) {
  const auto hash = static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15) >> 40);
  return static_cast<float>(static_cast<std::int32_t>(hash) - (1 << 23)) * 0x1p-23F;
}

}  // namespace sluice::bench
