// Executor: spreads independent pieces of work over a fixed set of threads.
//
// Two implementations behind make_executor(), chosen at configure time by SLUICE_EXECUTOR: TBB (an
// arena of its own, so that it neither disturbs nor is disturbed by other users of TBB), and plain
// threads for TSan builds, since an unsanitised TBB drowns TSan in false reports.
//
// Threads:   run() from one thread at a time; the caller works too, and returns when all is done.
// Placement: piece i of n runs where it ran in the last call with the same n, if that thread is
//            free, so that memory first touched by a piece stays near its core.
// Errors:    pieces do not throw (noexcept in spirit: an exception ends the program).
#pragma once

#include <functional>
#include <memory>

#include "aio/result.h"

namespace sluice::aio {

class Executor {
 public:
  virtual ~Executor() = default;
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  virtual int threads() const = 0;  // the caller's included
  virtual void run(int pieces, const std::function<void(int piece)>& work) = 0;
};

// threads: 1 .. 1024; 1 runs everything on the caller.
Result<std::unique_ptr<Executor>> make_executor(int threads);

}  // namespace sluice::aio
