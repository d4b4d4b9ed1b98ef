// DefaultFpEnvironment: during its lifetime this thread computes with SSE's defaults (nearest even,
// denormals kept, exceptions masked). The destructor restores the previous settings, flags
// included.
//
// Kernels need this to return the same bits: a library that turns on "flush denormals" does it for
// threads that it shares with others. The compiler does not model that arithmetic depends on MXCSR,
// so the arithmetic belongs in a function in a different file from the one that uses this object.
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
