// Executor: spreads independent pieces of work over a fixed set of threads.
//
// make_executor() has two implementations, chosen at configure time by SLUICE_EXECUTOR. One is TBB,
// in its own arena, so that it and other users of TBB do not disturb each other. The other is plain
// threads for TSan builds, since TBB without sanitizer makes TSan report many false errors.
//
// Threads:   run() from one thread at a time; the caller works too, and returns when all is done.
// Placement: piece i of n runs where it ran in the last call with the same n, if that thread is
//            free. So memory first touched by a piece stays local to its core.
// Errors:    pieces must not throw: an exception ends the program.
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
