// KernelWorkload: a kernel and its arrays, filled with values typical of training.
//
// Arrays begin on pages. With a stagger of s, array k (0, 1, ...) begins k * s cache lines after a
// page boundary. Equal elements of different arrays then differ in the low bits of their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aio/executor.h"
#include "aio/page_memory.h"
#include "aio/result.h"

namespace sluice::bench {

class KernelWorkload {
 public:
  virtual ~KernelWorkload() = default;
  KernelWorkload(const KernelWorkload&) = delete;
  KernelWorkload& operator=(const KernelWorkload&) = delete;

  // Runs the kernel once over all elements.
  virtual void pass() = 0;

  aio::PageKind page_kind() const { return memory_.at(0).page_kind(); }

 protected:
  KernelWorkload(aio::Executor& executor, int stagger_lines)
      : executor_(&executor), stagger_lines_(stagger_lines) {}

  // Allocates the next array, which lives as long as this object.
  Result<std::byte*> map(std::uint64_t bytes);
  // Calls fill(begin, end) over 0 .. elements on all threads.
  template <typename Fill>
  void fill_all(std::uint64_t elements, const Fill& fill);
  // In (-1, 1), different for neighbouring elements.
  static float noise(std::uint64_t i);

  aio::Executor& executor() { return *executor_; }

 private:
  aio::Executor* executor_;
  int stagger_lines_;
  std::vector<aio::PageMemory> memory_;
};

template <typename Fill>
void KernelWorkload::fill_all(std::uint64_t elements, const Fill& fill) {
  const auto pieces = static_cast<std::uint64_t>(executor_->threads());
  executor_->run(executor_->threads(), [&](int piece) {
    const auto at = static_cast<std::uint64_t>(piece);
    fill(elements * at / pieces, elements * (at + 1) / pieces);
  });
}

}  // namespace sluice::bench
