#include "aio/real_file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/aio/backends_under_test.h"
#include "tests/aio/forbid_syscall.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RealFileSystem, MakesListsRenamesAndRemoves) {
  TemporaryFolder folder;
  RealFileSystem files;
  ASSERT_OK(files.make_directories(folder.file("a/b")));
  ASSERT_OK(files.make_directories(folder.file("a/b")));
  std::ofstream(folder.file("a/new")) << "new";
  std::ofstream(folder.file("a/old")) << "old!";
  EXPECT_THAT(*files.list(folder.file("a")), ElementsAre("b", "new", "old"));
  ASSERT_OK(files.rename(folder.file("a/new"), folder.file("a/old")));
  EXPECT_EQ(std::filesystem::file_size(folder.file("a/old")), 3U);
  ASSERT_OK(files.sync_directory(folder.file("a")));
  ASSERT_OK(files.remove(folder.file("a/old")));
  ASSERT_OK(files.remove(folder.file("a/b")));
  EXPECT_FALSE(*files.exists(folder.file("a/old")));
  EXPECT_TRUE(*files.exists(folder.file("a")));
  EXPECT_GT(*files.free_bytes(folder.path()), 0U);
}

TEST(RealFileSystem, SaysOperationPathAndErrnoInWords) {
  RealFileSystem files;
  const auto missing = files.open("/no/such/file", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message(),
            "open /no/such/file failed: No such file or directory (ENOENT)");
  EXPECT_THAT(files.list("/no/such").error().message(), HasSubstr("listing of /no/such"));
  EXPECT_THAT(files.remove("/no/such").error().message(), HasSubstr("removal of /no/such"));
  EXPECT_FALSE(files.rename("/no/such", "/x").ok());
  EXPECT_FALSE(files.sync_directory("/no/such").ok());
  EXPECT_FALSE(files.free_bytes("/no/such").ok());
  EXPECT_FALSE(*files.exists("/no/such"));
}

TEST(RealFileSystem, TellsASectorOf4096OnDirectFilesAndOneByteOnOthers) {
  TemporaryFolder folder;
  RealFileSystem files;
  OpenOptions options{.access = OpenOptions::Access::kReadWrite,
                      .create = OpenOptions::Create::kIfMissing};
  options.direct = false;
  const auto buffered = files.open(folder.file("f"), options);
  ASSERT_OK(buffered);
  EXPECT_FALSE((*buffered)->direct());
  EXPECT_EQ((*buffered)->offset_alignment_bytes(), 1U);
  options.direct = true;
  const auto direct = files.open(folder.file("f"), options);
  ASSERT_OK(direct);
  if (!(*direct)->direct()) GTEST_SKIP() << "no O_DIRECT on this file system";
  EXPECT_EQ((*direct)->offset_alignment_bytes(), 4096U);
}

TEST(RealFileSystem, RefusesAPipeInsteadOfWaitingForItsOtherEnd) {
  TemporaryFolder folder;
  RealFileSystem files;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0644), 0);
  for (const bool direct : {false, true}) {
    const auto pipe = files.open(folder.file("pipe"), {.direct = direct});
    ASSERT_FALSE(pipe.ok());
    EXPECT_EQ(pipe.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(pipe.error().message(), HasSubstr("is a pipe"));
    EXPECT_FALSE(files.open(folder.path(), {.direct = direct}).ok());
    EXPECT_FALSE(files.open("/dev/null", {.direct = direct}).ok());
  }
  std::ofstream(folder.file("file")) << "text";
  const auto file = files.open(folder.file("file"), {});
  ASSERT_OK(file);
  EXPECT_EQ(::fcntl((*file)->descriptor(), F_GETFL) & O_NONBLOCK, 0);  // io_uring would not wait
}

TEST(RealFileSystem, NeitherWritesNorLocksThroughALink) {
  TemporaryFolder folder;
  RealFileSystem files;
  std::ofstream(folder.file("theirs")) << "content";
  for (const char* const target : {"theirs", "nowhere", "link"}) {
    std::filesystem::remove(folder.file("link"));
    std::filesystem::create_symlink(target, folder.file("link"));
    for (const auto create :
         {OpenOptions::Create::kIfMissing, OpenOptions::Create::kMustNotExist}) {
      const auto opened = files.open(folder.file("link"),
                                     {.access = OpenOptions::Access::kReadWrite, .create = create});
      ASSERT_FALSE(opened.ok());
      EXPECT_THAT(opened.error().message(),
                  testing::AnyOf(HasSubstr("it is a link"), HasSubstr("File exists")));
    }
    const auto locked = files.lock(folder.file("link"));
    ASSERT_FALSE(locked.ok());
    EXPECT_THAT(locked.error().message(), HasSubstr("it is a link"));
    EXPECT_FALSE(std::filesystem::exists(folder.file("nowhere")));
  }
  EXPECT_EQ(std::filesystem::file_size(folder.file("theirs")), 7U);
}

TEST(RealFileSystem, ReportsMissingPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may do everything";
  RealFileSystem files;
  const auto file = files.open(
      "/sluice-must-not-exist",
      {.access = OpenOptions::Access::kReadWrite, .create = OpenOptions::Create::kIfMissing});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kPermission);
}

// ---- locks ------------------------------------------------------------------------------------

class RealFileLocks : public testing::Test {
 protected:
  ErrorCode refusal() {
    const auto lock = files_.lock(path_);
    return lock.ok() ? ErrorCode::kInternal : lock.error().code();
  }
  const TemporaryFolder folder_;
  RealFileSystem files_;
  const std::string path_ = folder_.file("lock");
};

TEST_F(RealFileLocks, ExcludeEachOtherInsideAProcessAndLeaveTheFile) {
  auto lock = files_.lock(path_);
  ASSERT_OK(lock);
  const auto second = files_.lock(path_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(second.error().message(), HasSubstr("lock of " + path_));
  EXPECT_OK(files_.lock(folder_.file("other")));
  lock->reset();
  EXPECT_TRUE(*files_.exists(path_));
  EXPECT_OK(files_.lock(path_));
  EXPECT_EQ(files_.lock(folder_.path()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(files_.lock(folder_.file("no/lock")).error().code(), ErrorCode::kNotFound);
}

TEST_F(RealFileLocks, KnowWhereTheirFileIs) {
  const std::string inside = folder_.file("run");
  ASSERT_OK(files_.make_directories(inside));
  const auto lock = files_.lock(inside + "/lock");
  ASSERT_OK(lock);
  EXPECT_TRUE(*(*lock)->is_at(inside + "/lock"));
  ASSERT_OK(files_.rename(inside, folder_.file("moved")));
  EXPECT_FALSE(*(*lock)->is_at(inside + "/lock"));
  EXPECT_TRUE(*(*lock)->is_at(folder_.file("moved/lock")));
  ASSERT_OK(files_.make_directories(inside));
  std::ofstream(inside + "/lock") << "another";
  EXPECT_FALSE(*(*lock)->is_at(inside + "/lock"));
}

TEST(RealFileSystem, TellsALinkFromWhatItLeadsTo) {
  const TemporaryFolder folder;
  RealFileSystem files;
  std::ofstream(folder.file("file")) << "content";
  std::filesystem::create_symlink(folder.file("nowhere"), folder.file("link"));
  EXPECT_EQ(*files.kind_of(folder.path()), PathKind::kFolder);
  EXPECT_EQ(*files.kind_of(folder.file("file")), PathKind::kFile);
  EXPECT_EQ(*files.kind_of(folder.file("link")), PathKind::kLink);
  EXPECT_EQ(*files.kind_of(folder.file("file/below")), PathKind::kNothing);
  EXPECT_EQ(*files.kind_of("/dev/null"), PathKind::kOther);
}

TEST_F(RealFileLocks, KeepWhatTheFileHolds) {
  std::ofstream(path_) << "content";
  ASSERT_OK(files_.lock(path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 7U);
}

TEST_F(RealFileLocks, EndWithAProcessThatIsKilled) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = files_.lock(path_);
    const char told = lock.ok() ? 'y' : 'n';
    if (::write(pipe_ends[1], &told, 1) != 1) _exit(1);
    for (;;) ::pause();
  }
  char told = 0;
  ASSERT_EQ(::read(pipe_ends[0], &told, 1), 1);
  EXPECT_EQ(told, 'y');
  EXPECT_EQ(refusal(), ErrorCode::kBusy);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_OK(files_.lock(path_));
  for (const int end : pipe_ends) ::close(end);
}

TEST_F(RealFileLocks, AreNotReleasedByAForkedChildThatDropsItsCopy) {
  auto lock = files_.lock(path_);
  ASSERT_OK(lock);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    lock->reset();
    _exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(refusal(), ErrorCode::kBusy);
}

TEST_F(RealFileLocks, OfARemovedFileDoNotHoldItsName) {
  auto of_removed = files_.lock(path_);
  ASSERT_OK(of_removed);
  ASSERT_OK(files_.remove(path_));
  auto of_new = files_.lock(path_);
  ASSERT_OK(of_new);
  of_removed->reset();
  EXPECT_EQ(refusal(), ErrorCode::kBusy);
}

// A thread that has opened the file before its holder removes it locks a file without a name, just
// when another thread creates and locks the next one.
TEST_F(RealFileLocks, HaveOneHolderWhileEachHolderRemovesTheFile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kWanted = 300;  // sanitized code is slow
#else
  constexpr int kWanted = 2000;
#endif
  std::atomic<int> holders{0};
  std::atomic<int> most{0};
  std::atomic<int> got{0};
  std::atomic<int> other_errors{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    // Refusals are not counted: a holder that is not scheduled makes the others fail arbitrarily
    // often.
    threads.emplace_back([&] {
      while (got < kWanted && other_errors == 0) {
        const auto lock = files_.lock(path_);
        if (!lock.ok()) {
          if (lock.error().code() != ErrorCode::kBusy) ++other_errors;
          continue;
        }
        ++got;
        if (++holders > 1) most = 2;
        std::this_thread::yield();
        --holders;
        if (!files_.remove(path_).ok()) ++other_errors;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(most, 0) << "two held it at once";
  EXPECT_EQ(other_errors, 0);
  EXPECT_GE(got, kWanted);
}

// Like a network file system without a lock service.
TEST_F(RealFileLocks, AreUnsupportedWithAdviceWhereFlockIsRefused) {
  const auto child = [&] {
    if (!forbid_syscall(SYS_flock, ENOLCK)) _exit(10);
    const auto lock = files_.lock(path_);
    if (lock.ok() || lock.error().code() != ErrorCode::kUnsupported) _exit(11);
    _exit(lock.error().message().find("choose a path on a local drive") != std::string::npos ? 0
                                                                                             : 12);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice::aio
