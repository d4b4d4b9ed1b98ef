#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <optional>
#include <string>

#include "aio/executor.h"

namespace sluice::aio {
namespace {

class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int threads) : threads_(threads), arena_(threads) {
    // TBB allows more threads than cores only with an explicit limit. The smallest limit of a
    // process applies, so none is set unless it is needed.
    if (threads > tbb::this_task_arena::max_concurrency()) {
      allowed_.emplace(tbb::global_control::max_allowed_parallelism,
                       static_cast<std::size_t>(threads));
    }
  }

  int threads() const override { return threads_; }

  void run(int pieces, const std::function<void(int)>& work) override {
    arena_.execute([&] {
      // The affinity partitioner repeats the last assignment of pieces to threads.
      tbb::parallel_for(
          0, pieces, [&](int piece) { work(piece); }, affinity_);
    });
  }

 private:
  const int threads_;
  std::optional<tbb::global_control> allowed_;
  tbb::task_arena arena_;
  tbb::affinity_partitioner affinity_;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_executor(int threads) {
  if (threads < 1 || threads > 1024) {
    return Error(ErrorCode::kInvalidArgument,
                 "an executor takes 1 to 1024 threads, not " + std::to_string(threads));
  }
  return std::unique_ptr<Executor>(std::make_unique<TbbExecutor>(threads));
}

}  // namespace sluice::aio
