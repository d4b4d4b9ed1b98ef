#include "swap/record_work.h"

#include <atomic>
#include <mutex>

namespace sluice::swap {

Status work_on_record(aio::Executor& executor, RecordImage& image, const RecordWork& job) {
  if (job.check) SLUICE_RETURN_IF_ERROR(image.check_header(*job.check));
  if (job.seal) image.begin_seal(*job.seal);

  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_error;  // guarded by mutex
  const auto one_chunk = [&](int index) {
    if (failed.load(std::memory_order_relaxed)) return;
    if (job.check) {
      Status intact = image.check_chunk(index, *job.check);
      if (!intact.ok()) {
        failed.store(true, std::memory_order_relaxed);
        const std::lock_guard lock(mutex);
        if (first_error.ok()) first_error = std::move(intact);
        return;
      }
    }
    if (job.work) job.work(index, image.chunk(index));
    if (job.seal) image.seal_chunk(index, *job.seal);
  };
  executor.run(image.chunk_count(), std::cref(one_chunk));
  if (!first_error.ok()) return first_error;
  if (job.seal) image.finish_seal();
  return {};
}

}  // namespace sluice::swap
