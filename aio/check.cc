#include "aio/check.h"

#include <cstdio>
#include <cstdlib>

namespace sluice {

void check_failed(const char* expression, const char* message, const char* file,
                  int line) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s). This is a bug in Sluice: please report it.\n",
               file, line, message, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace sluice
