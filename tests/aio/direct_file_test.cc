#include "aio/direct_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/units.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

DirectFile::Options creating(std::uint64_t size_bytes) {
  DirectFile::Options options;
  options.open = {.access = OpenOptions::Access::kReadWrite,
                  .create = OpenOptions::Create::kMustNotExist};
  options.size_bytes = size_bytes;
  return options;
}

DirectFile::Options existing(OpenOptions::Access access) {
  DirectFile::Options options;
  options.open.access = access;
  return options;
}

class DirectFileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::unique_ptr<IoBackend> backend_ = make_backend_or_die(BackendKind::kPosix);
  std::unique_ptr<IoQueue> queue_ = make_queue_or_die(*backend_, {});
};

TEST_F(DirectFileTest, TakesItsSpaceAtOpen) {
  const std::string path = folder_.file("f");
  const auto file = DirectFile::open(*queue_, path, creating(3 * kMiB + 5));
  ASSERT_OK(file);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512, 3 * kMiB + 5);
}

TEST_F(DirectFileTest, CutsThePaddingOffWhenFinished) {
  const std::string path = folder_.file("f");
  const auto data = random_bytes(10'001, 1);
  {
    const auto file = DirectFile::open(*queue_, path, creating(data.size()));
    ASSERT_OK(file);
    ASSERT_OK(queue_->write(**file, 0, data));
    ASSERT_OK((*file)->finish());
  }
  EXPECT_EQ(std::filesystem::file_size(path), 10'001U);
  const auto again = DirectFile::open(*queue_, path, existing(OpenOptions::Access::kRead));
  ASSERT_OK(again);
  EXPECT_EQ((*again)->size_bytes(), 10'001U);
  std::vector<std::byte> back(10'001);
  ASSERT_OK(queue_->read(**again, 0, back));
  EXPECT_EQ(back, data);
}

TEST_F(DirectFileTest, ChangesAnExistingFileOfOddSizeInPlace) {
  const std::string path = folder_.file("f");
  auto expected = random_bytes(9'999, 2);
  {
    std::ofstream plain(path, std::ios::binary);
    plain.write(reinterpret_cast<const char*>(expected.data()), 9'999);
  }
  {
    const auto file = DirectFile::open(*queue_, path, existing(OpenOptions::Access::kReadWrite));
    ASSERT_OK(file);
    const auto patch = random_bytes(1'000, 3);
    ASSERT_OK(queue_->write(**file, 8'999, patch));  // the very tail
    std::copy(patch.begin(), patch.end(), expected.begin() + 8'999);
    ASSERT_OK((*file)->finish());
  }
  EXPECT_EQ(std::filesystem::file_size(path), 9'999U);
  const auto again = DirectFile::open(*queue_, path, existing(OpenOptions::Access::kRead));
  ASSERT_OK(again);
  std::vector<std::byte> back(9'999);
  ASSERT_OK(queue_->read(**again, 0, back));
  EXPECT_EQ(back, expected);
}

TEST_F(DirectFileTest, NeverTouchesAFileThatIsThere) {
  const std::string path = folder_.file("precious");
  std::ofstream(path) << "precious";
  const auto file = DirectFile::open(*queue_, path, creating(4096));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
}

TEST_F(DirectFileTest, LeavesNoNameBehindWhenAnonymous) {
  auto options = creating(kMiB);
  options.open.create = OpenOptions::Create::kAnonymous;
  const auto file = DirectFile::open(*queue_, folder_.path(), options);
  ASSERT_OK(file);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  const auto data = random_bytes(kMiB, 4);
  std::vector<std::byte> back(kMiB);
  ASSERT_OK(queue_->write(**file, 0, data));
  ASSERT_OK(queue_->read(**file, 0, back));
  EXPECT_EQ(back, data);
}

TEST_F(DirectFileTest, SaysOnceThatAFileSystemInMemoryIsBuffered) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm here";
  std::vector<std::string> said;
  log::set_sink([&](log::Level, std::string_view text) { said.emplace_back(text); });
  auto options = creating(100'001);
  options.open.create = OpenOptions::Create::kAnonymous;
  for (int i = 0; i < 2; ++i) {
    const auto file = DirectFile::open(*queue_, "/dev/shm", options);
    ASSERT_OK(file);
    EXPECT_FALSE((*file)->direct());
    const auto data = random_bytes(100'001, 5);
    std::vector<std::byte> back(100'001);
    ASSERT_OK(queue_->write(**file, 0, data));
    ASSERT_OK(queue_->read(**file, 0, back));
    EXPECT_EQ(back, data);
  }
  log::set_sink({});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], HasSubstr("page cache"));
}

TEST_F(DirectFileTest, SaysHowMuchIsFreeWhenTheDiskIsTooSmall) {
  VirtualLoop loop;
  SimDrive::Options drive_options;
  drive_options.capacity_bytes = 64 * kMiB;
  SimDrive drive(loop, drive_options);
  auto queue = make_queue_or_die(drive, {});
  const auto file = DirectFile::open(*queue, "/big", creating(65 * kMiB));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kNoSpace);
  EXPECT_THAT(file.error().message(), ContainsRegex("65M.*/big"));
  EXPECT_THAT(file.error().message(), HasSubstr("64M are free"));
  EXPECT_FALSE(*drive.files().exists("/big"));
  EXPECT_OK(DirectFile::open(*queue, "/fits", creating(60 * kMiB)));
}

TEST_F(DirectFileTest, RefusesAPathThatIsNotThere) {
  const auto missing = DirectFile::open(*queue_, folder_.file("no/such/file"), creating(4096));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("no/such/file"));
}

}  // namespace
}  // namespace sluice::aio
