#include "aio/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::string_view kSecret = "swordfish";
constexpr int kSwapTries = 3000;

class RegularFile : public testing::Test {
 protected:
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string content(const OwnedDescriptor& file) {
    std::string text(100, '\0');
    const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }
  static Status add(const std::string& path, std::string_view text) {
    const auto file = open_itself(path, O_WRONLY | O_CREAT | O_APPEND);
    SLUICE_RETURN_IF_ERROR(file.status());
    if (::write(file->get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
      return {};
    return Error(ErrorCode::kIo, "not written");
  }

  const TemporaryFolder elsewhere_;
  const TemporaryFolder folder_;
  const std::string theirs_ = elsewhere_.file("theirs");
  const std::string path_ = folder_.file("events.jsonl");
};

TEST_F(RegularFile, IsWrittenItselfAndNotWhatALinkLeadsTo) {
  ASSERT_OK(add(path_, "a"));
  ASSERT_OK(add(path_, "b"));
  EXPECT_EQ(content(path_), "ab");
  std::ofstream(theirs_) << kSecret;
  for (const std::string& target :
       {theirs_, elsewhere_.file("nowhere"), elsewhere_.path(), std::string("/dev/null"), path_}) {
    fs::remove(path_);
    fs::create_symlink(target, path_);
    const Status added = add(path_, "more");
    ASSERT_FALSE(added.ok()) << target;
    EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(added.error().message(), HasSubstr("events.jsonl is a link"));
  }
  EXPECT_EQ(content(theirs_), kSecret);
  EXPECT_FALSE(fs::exists(elsewhere_.file("nowhere")));
}

TEST_F(RegularFile, IsNoPipeFolderOrDevice) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(add(path_, "text").error().message(), HasSubstr("a regular file"));
  EXPECT_THAT(open_itself(path_, O_RDWR).status().error().message(), HasSubstr("a regular file"));
  EXPECT_THAT(open_inside(path_).status().error().message(), HasSubstr("a regular file"));
  EXPECT_FALSE(open_itself(folder_.path(), O_RDWR).ok());
  EXPECT_FALSE(open_inside(folder_.path()).ok());
  EXPECT_FALSE(open_itself("/dev/null", O_RDWR).ok());
  const auto made = make_fresh(path_, O_RDWR);  // replaces it
  ASSERT_OK(made);
  EXPECT_TRUE(fs::is_regular_file(path_));
}

TEST_F(RegularFile, LeavesOtherNamesOfAFileWhatTheyHad) {
  std::ofstream(theirs_) << "theirs";
  fs::create_hard_link(theirs_, path_);
  fs::permissions(theirs_, fs::perms(0640));
  const auto read = open_itself(path_, O_RDONLY);
  ASSERT_OK(read);
  EXPECT_EQ(fs::hard_link_count(theirs_), 2U);
  ASSERT_OK(add(path_, " and ours"));
  ASSERT_OK(add(path_, ", twice"));
  EXPECT_EQ(content(path_), "theirs and ours, twice");
  EXPECT_EQ(content(theirs_), "theirs");
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0640));
  EXPECT_FALSE(fs::exists(path_ + ".new"));
  fs::create_hard_link(theirs_, path_ + ".new");
  ASSERT_OK(make_fresh(path_ + ".new", O_WRONLY));
  EXPECT_EQ(content(theirs_), "theirs");
}

TEST_F(RegularFile, IsReadThroughLinksThatStayInItsFolder) {
  std::ofstream(theirs_) << kSecret;
  std::ofstream(folder_.file("m.jsonl")) << "ours";
  fs::create_symlink("m.jsonl", path_);
  const auto inside = open_inside(path_);
  if (inside.ok()) {  // else the kernel lacks openat2()
    EXPECT_EQ(content(*inside), "ours");
  }
  for (const std::string& target :
       {theirs_, "../" + fs::path(elsewhere_.path()).filename().string() + "/theirs"}) {
    fs::remove(path_);
    fs::create_symlink(target, path_);
    const auto outside = open_inside(path_);
    ASSERT_FALSE(outside.ok());
    EXPECT_THAT(outside.status().error().message(), HasSubstr("events.jsonl is a link"));
  }
  EXPECT_EQ(open_inside(folder_.file("none")).status().error().code(), ErrorCode::kNotFound);
}

// Code that checks a name and then opens it would fail here within some hundred tries.
TEST_F(RegularFile, IsNeverAnotherWhileSomebodySwapsItForALink) {
  std::ofstream(theirs_) << kSecret;
  std::ofstream(folder_.file("m.jsonl")) << "ours";
  std::ofstream(path_) << "ours";
  std::atomic<bool> ends = false;
  std::thread swaps([&] {
    const std::string next = folder_.file("next");
    while (!ends) {
      fs::create_symlink(theirs_, next);
      fs::rename(next, path_);
      fs::create_hard_link(folder_.file("m.jsonl"), next);
      fs::rename(next, path_);
      std::error_code ignored;
      fs::remove(next, ignored);  // two names of one file: the rename did nothing
    }
  });
  int read = 0, refused = 0;
  for (int i = 0; i < kSwapTries; ++i) {
    const auto file = open_inside(path_);
    read += file.ok() ? 1 : 0;
    refused += file.ok() ? 0 : 1;
    if (file.ok()) {
      EXPECT_EQ(content(*file), "ours");
    }
    static_cast<void>(add(path_, ""));
    static_cast<void>(make_fresh(folder_.file("fresh"), O_WRONLY));
  }
  ends = true;
  swaps.join();
  EXPECT_EQ(content(theirs_), kSecret);
  EXPECT_GT(read + refused, 0);
}

}  // namespace
}  // namespace sluice::aio
