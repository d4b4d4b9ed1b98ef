// DefaultFpEnvironment: while it lives, this thread computes with SSE's defaults (nearest even,
// denormals kept, exceptions masked); afterwards with whatever was set before, flags included.
//
// Only so do kernels return the same bits: a library that turns on "flush denormals" does it for
// threads it shares with others. The compiler does not know that arithmetic depends on MXCSR, so
// the arithmetic belongs in a function in a different file from the one that holds this object.
#pragma once

#include <xmmintrin.h>

namespace sluice::offload {

class DefaultFpEnvironment {
 public:
  DefaultFpEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefaultMxcsr); }
  ~DefaultFpEnvironment() { _mm_setcsr(before_); }
  DefaultFpEnvironment(const DefaultFpEnvironment&) = delete;
  DefaultFpEnvironment& operator=(const DefaultFpEnvironment&) = delete;

 private:
  static constexpr unsigned kDefaultMxcsr = 0x1F80;
  const unsigned before_;
};

}  // namespace sluice::offload
