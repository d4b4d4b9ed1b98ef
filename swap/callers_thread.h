// CallersThread: an executor for work on one record that runs on the calling thread.
//
// Threads: any, at any time; it has no state.
#pragma once

#include <functional>

#include "aio/executor.h"

namespace sluice::swap {

class CallersThread final : public aio::Executor {
 public:
  int threads() const override { return 1; }
  void run(int pieces, const std::function<void(int)>& work) override {
    for (int piece = 0; piece < pieces; ++piece) work(piece);
  }
};

}  // namespace sluice::swap
