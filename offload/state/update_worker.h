// UpdateWorker: a thread that runs one job at a time, for updates in the background.
//
// Threads: start() and wait() from one thread. Nothing is allocated after create().
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "aio/result.h"

namespace sluice::offload {

class UpdateWorker {
 public:
  // The job must not throw. kOutOfMemory: the thread could not be started.
  static Result<std::unique_ptr<UpdateWorker>> create(std::function<void()> job);
  ~UpdateWorker();  // waits for the job
  UpdateWorker(const UpdateWorker&) = delete;
  UpdateWorker& operator=(const UpdateWorker&) = delete;

  // Runs the job once, after the previous run has ended.
  void start();
  // Waits until the last run has ended.
  void wait();

 private:
  explicit UpdateWorker(std::function<void()> job) : job_(std::move(job)) {}
  void serve();

  const std::function<void()> job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice::offload
