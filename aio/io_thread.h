// Small helpers that every IO thread needs.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace sluice::aio {

// During its lifetime, threads started by this thread inherit a mask that blocks every signal. So
// signals go to the program's own threads, and no system call of an IO thread is interrupted.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// The names of threads that BlockedCalls leaves out.
inline constexpr const char* kPosixThread = "sluice-posix";
inline constexpr const char* kDriveLookUpThread = "sluice-drive";

inline void name_this_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace sluice::aio
