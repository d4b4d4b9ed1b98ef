#include "tools/support/interrupt.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace sluice::tools {
namespace {

constexpr int kWentOn = 7;  // a unique exit code

void send(int number) { kill(getpid(), number); }

// Waits until the signal thread has handled the signal.
void wait_for(const Interrupt& interrupt) {
  while (!interrupt.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool is_blocked(int number) {
  sigset_t mask{};
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

sigset_t signals_pending() {
  sigset_t waiting{};
  sigpending(&waiting);
  return waiting;
}

// Each statement runs in its own process.
TEST(InterruptDeathTest, TheFirstSignalIsAFlagAndTheSecondOneEndsTheProcess) {
  for (const int first : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          const SignalThread signals;
          const Interrupt interrupt("the notice\n");
          send(first);
          wait_for(interrupt);
          send(SIGINT);
          for (;;) pause();
        },
        testing::ExitedWithCode(kInterruptedExitCode), "");
  }
}

TEST(InterruptDeathTest, ALostConnectionMaySendSeveralSignals) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        {
          const SignalThread signals;
          send(SIGHUP);
          wait_for(interrupt);
          for (const int number : {SIGHUP, SIGTERM, SIGHUP}) send(number);
          for (sigset_t waiting = signals_pending(); !sigisemptyset(&waiting);)
            waiting = signals_pending();
        }  // has judged the last of them
        _exit(kWentOn);
      },
      testing::ExitedWithCode(kWentOn), "");
}

// Slurm's --signal comes minutes before its SIGTERM, and the save may take longer.
TEST(InterruptDeathTest, ASchedulersWarningAsksForASaveAndIsNotTheFirstOfTwo) {
  for (const int warning : {SIGUSR1, SIGUSR2}) {
    EXPECT_EXIT(
        {
          const SignalThread signals;
          const Interrupt interrupt;
          send(warning);
          wait_for(interrupt);
          if (warning == SIGUSR1) std::this_thread::sleep_for(kSameStop);  // once suffices
          send(SIGTERM);
          send(warning);
          for (sigset_t waiting = signals_pending(); !sigisemptyset(&waiting);)
            waiting = signals_pending();
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          _exit(interrupt.first_signal() == warning ? kWentOn : 1);
        },
        testing::ExitedWithCode(kWentOn), "");
    EXPECT_EXIT(
        {
          std::signal(warning, SIG_IGN);
          const SignalThread signals;
          const Interrupt interrupt;
          send(warning);
          _exit(is_blocked(warning) || interrupt.requested() ? 1 : kWentOn);
        },
        testing::ExitedWithCode(kWentOn), "");
  }
}

// A tool that ends a job signals the process, its group and its parent, which passes the signal on.
TEST(InterruptDeathTest, ASignalThatComesTwiceIsOneStop) {
  for (const int first : {SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          const Interrupt interrupt;
          {
            const SignalThread signals;
            send(first);
            wait_for(interrupt);
            for (int time = 0; time < 3; ++time) {
              send(SIGTERM);
              for (sigset_t waiting = signals_pending(); !sigisemptyset(&waiting);)
                waiting = signals_pending();
              stop_as_by_signal();
            }
          }
          _exit(kWentOn);
        },
        testing::ExitedWithCode(kWentOn), "");
  }
}

TEST(InterruptDeathTest, ASignalAfterATakenOneIsAFirstOne) {
  EXPECT_EXIT(
      {
        const SignalThread signals;
        Interrupt interrupt;
        for (int time = 0; time < 3; ++time) {
          send(SIGINT);
          wait_for(interrupt);
          if (interrupt.take() != SIGINT || interrupt.requested()) _exit(1);
        }
        _exit(kWentOn);
      },
      testing::ExitedWithCode(kWentOn), "");
}

TEST(InterruptDeathTest, ASigtermSoonAfterCtrlCIsNotLost) {
  EXPECT_EXIT(
      {
        const SignalThread signals;
        Interrupt interrupt;
        send(SIGINT);
        wait_for(interrupt);
        send(SIGTERM);
        for (int time = 0; time < 500; ++time) {
          const int taken = interrupt.take();
          if (taken == SIGTERM) _exit(kWentOn);
          usleep(10'000);
        }
        _exit(1);
      },
      testing::ExitedWithCode(kWentOn), "");
}

TEST(InterruptDeathTest, StopsWithoutASignalAsByOne) {
  EXPECT_EXIT(
      {
        const SignalThread signals;
        const Interrupt interrupt;
        stop_as_by_signal();
        _exit(interrupt.first_signal() == SIGHUP ? kWentOn : 1);
      },
      testing::ExitedWithCode(kWentOn), "");
  EXPECT_EXIT(
      {
        const SignalThread signals;
        stop_as_by_signal();
        for (;;) pause();
      },
      testing::KilledBySignal(SIGTERM), "");
}

// The thread's standard error is a full pipe without a reader.
TEST(InterruptDeathTest, EndsTheProcessThoughItsNoticeCannotBeWritten) {
  EXPECT_EXIT(
      {
        int ends[2];
        if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) _exit(1);
        while (write(ends[1], "x", 1) == 1) {
        }
        fcntl(ends[1], F_SETFL, 0);
        dup2(ends[1], STDERR_FILENO);
        const SignalThread signals;
        const Interrupt interrupt("the notice\n");
        send(SIGTERM);
        wait_for(interrupt);
        send(SIGINT);
        for (;;) pause();
      },
      testing::ExitedWithCode(kInterruptedExitCode), "");
}

TEST(InterruptDeathTest, WithoutOneASignalDoesWhatItAlwaysDid) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    EXPECT_EXIT(
        {
          const SignalThread signals;
          { const Interrupt over; }
          send(number);
          for (;;) pause();
        },
        testing::KilledBySignal(number), "");
  }
}

TEST(InterruptDeathTest, IgnoresAHangUpThatWasIgnoredAtTheStart) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);
        const SignalThread signals;
        const Interrupt interrupt;
        send(SIGHUP);
        if (is_blocked(SIGHUP) || interrupt.requested()) _exit(1);
        send(SIGINT);
        wait_for(interrupt);
        _exit(kWentOn);
      },
      testing::ExitedWithCode(kWentOn), "");
}

TEST(Interrupt, LeavesTheMaskAsItWas) {
  {
    const SignalThread signals;
    EXPECT_TRUE(is_blocked(SIGINT));
    bool inherited = false;
    std::thread([&] { inherited = is_blocked(SIGINT); }).join();
    EXPECT_TRUE(inherited);
  }
  EXPECT_FALSE(is_blocked(SIGINT));
}

TEST(InterruptDeathTest, AWriteThatIsTooLongOrUnreadFailsInsteadOfEndingTheProcess) {
  EXPECT_EXIT(
      {
        fail_writes_beyond_limits();
        fail_writes_without_reader();
        send(SIGXFSZ);
        send(SIGPIPE);
        _exit(kWentOn);
      },
      testing::ExitedWithCode(kWentOn), "");
}

}  // namespace
}  // namespace sluice::tools
