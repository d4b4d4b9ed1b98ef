// CHECK: an invariant of the program that must hold in every build. A failure prints where and why,
// and aborts: the program is wrong, not its input. Errors that a user or a drive can cause are
// Status. DCHECK is for hot loops: it disappears in release builds.
#pragma once

namespace sluice {

[[noreturn]] void check_failed(const char* expression, const char* message, const char* file,
                               int line) noexcept;

}  // namespace sluice

#define SLUICE_CHECK(condition, message)                                 \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::sluice::check_failed(#condition, (message), __FILE__, __LINE__); \
    }                                                                    \
  } while (false)

#ifdef NDEBUG
#define SLUICE_DCHECK(condition, message) static_cast<void>(0)
#else
#define SLUICE_DCHECK(condition, message) SLUICE_CHECK(condition, message)
#endif
