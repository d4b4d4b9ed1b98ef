#include "aio/make_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "aio/log.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

TEST(MakeBackend, NamesItsChoicesWhenAskedForAnother) {
  const auto kind = parse_backend_kind("libaio");
  ASSERT_FALSE(kind.ok());
  EXPECT_EQ(kind.error().message(), "\"libaio\" is no IO backend: choose auto, uring or posix");
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

// As container runtimes do it: io_uring_setup is answered with EPERM.
bool forbid_io_uring() {
  std::array<sock_filter, 4> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(UringRefused, FallsBackToThreadsAndSaysSoUnlessInsistedOn) {
  const auto child = [] {
    std::vector<std::string> said;
    log::set_sink([&](log::Level, std::string_view text) { said.emplace_back(text); });
    if (!forbid_io_uring()) _exit(10);
    for (int i = 0; i < 2; ++i) {
      const auto backend = make_backend({});
      if (!backend.ok() || (*backend)->name() != "posix") _exit(11);
    }
    if (said.size() != 1 || said[0].find("POSIX threads serve instead") == std::string::npos) {
      _exit(12);
    }
    const auto insisted = make_backend({.kind = BackendKind::kUring});
    if (insisted.ok() || insisted.error().code() != ErrorCode::kUnsupported) _exit(13);
    _exit(insisted.error().message().find("seccomp") != std::string::npos ? 0 : 14);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::aio
