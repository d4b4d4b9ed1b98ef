#include "offload/state/update_worker.h"

#include <string>
#include <system_error>
#include <utility>

#include "aio/io_thread.h"

namespace sluice::offload {

Result<std::unique_ptr<UpdateWorker>> UpdateWorker::create(std::function<void()> job) {
  std::unique_ptr<UpdateWorker> worker(new UpdateWorker(std::move(job)));
  try {
    const aio::SignalsBlocked signals_blocked;
    worker->thread_ = std::thread([self = worker.get()] { self->serve(); });
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOutOfMemory, std::string("could not start the thread for updates (") +
                                              error.what() + "): raise ulimit -u");
  }
  return worker;
}

UpdateWorker::~UpdateWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void UpdateWorker::start() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
  running_ = true;
  changed_.notify_all();
}

void UpdateWorker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
}

void UpdateWorker::serve() {
  aio::name_this_thread("sluice-update");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return running_ || stopping_; });
    if (!running_) return;
    lock.unlock();
    job_();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace sluice::offload
