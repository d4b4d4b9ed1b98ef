#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "aio/executor.h"
#include "aio/io_thread.h"

namespace sluice::aio {
namespace {

// Thread t of n works on pieces t, t + n, ...; the caller is thread 0.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}

  // Separate from the constructor, so that the destructor ends the threads that were started if one
  // fails to start.
  void start() {
    const SignalsBlocked signals_blocked;
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { serve(i); });
  }

  ~ThreadExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const override { return threads_; }

  void run(int pieces, const std::function<void(int)>& work) override {
    {
      const std::lock_guard lock(mutex_);
      pieces_ = pieces;
      work_ = &work;
      working_ = static_cast<int>(workers_.size());
      ++round_;
    }
    changed_.notify_all();
    share(0, pieces, work);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return working_ == 0; });
  }

 private:
  void share(int thread, int pieces, const std::function<void(int)>& work) const {
    for (int piece = thread; piece < pieces; piece += threads_) work(piece);
  }

  void serve(int thread) {
    name_this_thread("sluice-work");
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = 0;;) {
      changed_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      const int pieces = pieces_;
      const auto& work = *work_;
      lock.unlock();
      share(thread, pieces, work);
      lock.lock();
      if (--working_ == 0) changed_.notify_all();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* work_ = nullptr;  // guarded by mutex_, like all below
  int pieces_ = 0;
  int working_ = 0;
  std::uint64_t round_ = 0;
  bool stopping_ = false;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_executor(int threads) {
  if (threads < 1 || threads > 1024) {
    return Error(ErrorCode::kInvalidArgument,
                 "an executor takes 1 to 1024 threads, not " + std::to_string(threads));
  }
  try {
    auto executor = std::make_unique<ThreadExecutor>(threads);
    executor->start();
    return std::unique_ptr<Executor>(std::move(executor));
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOutOfMemory, "could not start " + std::to_string(threads) +
                                              " threads (" + error.what() + "): raise ulimit -u");
  }
}

}  // namespace sluice::aio
