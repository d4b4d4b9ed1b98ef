#include "aio/make_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "aio/log.h"
#include "tests/aio/backends_under_test.h"
#include "tests/aio/forbid_syscall.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

TEST(MakeBackend, NamesItsChoicesWhenAskedForAnother) {
  const auto kind = parse_backend_kind("libaio");
  ASSERT_FALSE(kind.ok());
  EXPECT_EQ(kind.error().message(), "\"libaio\" is not an IO backend: choose auto, uring or posix");
  EXPECT_EQ(*parse_backend_kind("auto"), BackendKind::kAuto);
  EXPECT_EQ(*parse_backend_kind("uring"), BackendKind::kUring);
  EXPECT_EQ(*parse_backend_kind("posix"), BackendKind::kPosix);
}

TEST(MakeBackend, RefusesThreadsAndDepthsOutOfRange) {
  for (const auto kind : {BackendKind::kAuto, BackendKind::kPosix}) {
    EXPECT_THAT(make_backend({.kind = kind, .threads = 0}).error().message(), HasSubstr("threads"));
    EXPECT_THAT(make_backend({.kind = kind, .threads = 65}).error().message(), HasSubstr("65"));
    EXPECT_THAT(make_backend({.kind = kind, .queue_depth = 0}).error().message(),
                HasSubstr("queue depth"));
  }
}

TEST(MakeBackend, SaysWhenThePosixPoolIsSmallerThanTheDepth) {
  std::vector<std::string> said;
  log::set_sink([&](log::Level, std::string_view text) { said.emplace_back(text); });
  const auto backend =
      make_backend({.kind = BackendKind::kPosix, .threads = 8, .queue_depth = 1000});
  log::set_sink({});
  ASSERT_OK(backend);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], HasSubstr("256 threads"));
}

TEST(UringRefused, FallsBackToThreadsAndSaysSoUnlessInsistedOn) {
  const auto child = [] {
    std::vector<std::string> said;
    log::set_sink([&](log::Level, std::string_view text) { said.emplace_back(text); });
    if (!forbid_syscall(SYS_io_uring_setup, EPERM)) _exit(10);  // like container runtimes
    for (int i = 0; i < 2; ++i) {
      const auto backend = make_backend({});
      if (!backend.ok() || (*backend)->name() != "posix") _exit(11);
    }
    if (said.size() != 1 || said[0].find("POSIX threads are used instead") == std::string::npos) {
      _exit(12);
    }
    const auto insisted = make_backend({.kind = BackendKind::kUring});
    if (insisted.ok() || insisted.error().code() != ErrorCode::kUnsupported) _exit(13);
    _exit(insisted.error().message().find("seccomp") != std::string::npos ? 0 : 14);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

// Rings can be created but not used; only trying one shows it.
TEST(UringRefused, FallsBackToThreadsWhereRingsCanBeMadeButNotEntered) {
  const auto child = [](unsigned error_number) {
    ::alarm(60);  // fail instead of hanging
    std::vector<std::string> said;
    log::set_sink([&](log::Level, std::string_view text) { said.emplace_back(text); });
    if (!forbid_syscall(SYS_io_uring_enter, error_number)) _exit(10);
    const auto backend = make_backend({.threads = 2});
    if (!backend.ok() || (*backend)->name() != "posix") _exit(11);
    if (said.size() != 1 || said[0].find("io_uring_enter") != 0 ||
        said[0].find("POSIX threads are used instead") == std::string::npos) {
      _exit(12);
    }
    const auto insisted = make_backend({.kind = BackendKind::kUring});
    if (insisted.ok() || insisted.error().code() != ErrorCode::kUnsupported) _exit(13);
    const std::string& message = insisted.error().message();
    _exit(message.find("the backends auto and posix") != std::string::npos ? 0 : 14);
  };
  for (const int error_number : {EPERM, EAGAIN, EBUSY, ENOMEM, EINTR, 0}) {
    EXPECT_EXIT(child(static_cast<unsigned>(error_number)), testing::ExitedWithCode(0), "")
        << error_number;
  }
}

}  // namespace
}  // namespace sluice::aio
