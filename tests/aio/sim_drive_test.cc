#include "aio/sim_drive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <functional>
#include <random>

#include "aio/real_file_system.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

// ---- data, alignment, space -------------------------------------------------------------------

class SimDriveTest : public testing::Test {
 protected:
  VirtualLoop loop_;
  SimDrive drive_{loop_, {}};
};

TEST_F(SimDriveTest, AgreesWithAByteArrayForRandomBufferedTransfers) {
  const std::uint64_t seed = 3;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto file = open_file(drive_, "/f", false);
  std::vector<std::byte> oracle;
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t offset = random() % 300'000;
    if (random() % 4 == 0) offset = align_down(offset, SparsePages::kPageBytes);
    const std::uint64_t length = random() % (i % 5 == 0 ? 150'000 : 700);
    switch (random() % 8) {
      case 0:
        ASSERT_OK(file->truncate(offset));
        oracle.resize(offset);
        break;
      case 1:
        ASSERT_OK(file->allocate(offset));
        oracle.resize(std::max<std::size_t>(oracle.size(), offset));
        break;
      case 2:
        ASSERT_EQ(sync_file(drive_, *file), 0);
        break;
      case 3:
      case 4: {
        const auto data = random() % 4 == 0 ? filled(length, 0) : random_bytes(length, random());
        ASSERT_EQ(write_at(drive_, *file, offset, data), static_cast<std::int64_t>(length));
        if (length > 0) oracle.resize(std::max<std::size_t>(oracle.size(), offset + length));
        std::copy(data.begin(), data.end(),
                  oracle.begin() + static_cast<std::ptrdiff_t>(length > 0 ? offset : 0));
        break;
      }
      default: {
        const std::size_t begin = std::min<std::size_t>(offset, oracle.size());
        const std::size_t end = std::min<std::size_t>(offset + length, oracle.size());
        ASSERT_EQ(read_at(drive_, *file, offset, length),
                  std::vector<std::byte>(oracle.begin() + static_cast<std::ptrdiff_t>(begin),
                                         oracle.begin() + static_cast<std::ptrdiff_t>(end)));
      }
    }
    ASSERT_EQ(*file->size_bytes(), oracle.size());
  }
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent), oracle);
}

TEST_F(SimDriveTest, MakesAWriteVisibleWhenItCompletes) {
  const auto file = open_file(drive_, "/f");
  const AlignedBytes data(filled(4096, 7));
  TestOp write(IoKind::kWrite, file.get(), 0, data.data(), 4096);
  write.submit(drive_);
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent)->size(), 0U);
  loop_.run();
  EXPECT_EQ(write.result, 4096);
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kPresent), filled(4096, 7));
}

TEST_F(SimDriveTest, HoldsAHugeSparseFileForNothing) {
  const auto file = open_file(drive_, "/huge");
  ASSERT_OK(file->truncate(std::uint64_t{1} << 50));
  const std::uint64_t end = (std::uint64_t{1} << 50) - 4096;
  EXPECT_EQ(read_at(drive_, *file, end, 4096), filled(4096, 0));
  ASSERT_EQ(write_at(drive_, *file, end, filled(4096, 1)), 4096);
  EXPECT_EQ(read_at(drive_, *file, end, 8192), filled(4096, 1));  // cut at the end of the file
  EXPECT_EQ(drive_.used_bytes(), 4096U);
}

TEST_F(SimDriveTest, RefusesMisalignedDirectTransfersAsAKernelDoes) {
  const auto direct = open_file(drive_, "/f");
  EXPECT_EQ(direct->offset_alignment_bytes(), 4096U);
  const AlignedBytes data(3 * 4096);
  const auto result = [&](File& file, std::uint64_t offset, std::size_t shift, std::size_t length) {
    return run_op(drive_, TestOp(IoKind::kWrite, &file, offset, data.data() + shift, length));
  };
  EXPECT_EQ(result(*direct, 0, 0, 8192), 8192);
  EXPECT_EQ(result(*direct, 512, 0, 4096), -EINVAL);
  EXPECT_EQ(result(*direct, 0, 0, 4095), -EINVAL);
  EXPECT_EQ(result(*direct, 0, 16, 4096), -EINVAL);
  EXPECT_EQ(run_op(drive_, TestOp(IoKind::kRead, direct.get(), 0, data.data(), 100)), -EINVAL);
  EXPECT_EQ(result(*direct, UINT64_MAX - 4095, 0, 4096), -EINVAL);
  const auto buffered = open_file(drive_, "/f", false);
  EXPECT_FALSE(buffered->direct());
  EXPECT_EQ(result(*buffered, 513, 3, 1001), 1001);
  EXPECT_EQ(drive_.stats().failed_ops, 5U);
}

TEST_F(SimDriveTest, RefusesToWriteAFileOpenedForReading) {
  open_file(drive_, "/f");
  const auto file = drive_.files().open("/f", {});
  ASSERT_OK(file);
  EXPECT_EQ(write_at(drive_, **file, 0, filled(4096, 1)), -EBADF);
  EXPECT_FALSE((*file)->truncate(10).ok());
  EXPECT_FALSE((*file)->allocate(10).ok());
}

TEST_F(SimDriveTest, KeepsTimeAndSizesButNoBytesWhenAskedTo) {
  SimDrive::Options options;
  options.keep_data = false;
  SimDrive drive(loop_, options);
  const auto file = open_file(drive, "/f");
  EXPECT_EQ(write_at(drive, *file, 0, filled(8192, 9)), 8192);
  EXPECT_EQ(*file->size_bytes(), 8192U);
  EXPECT_EQ(drive.used_bytes(), 8192U);
  EXPECT_EQ(read_at(drive, *file, 4096, 8192), filled(4096, 0xEE));  // the buffer is unchanged
}

TEST(SimDriveSpace, IsTakenByAllocationAndFirstWritesAndGivenBack) {
  VirtualLoop loop;
  SimDrive::Options options;
  options.capacity_bytes = 40'960;
  SimDrive drive(loop, options);
  FileSystem& files = drive.files();
  auto a = open_file(drive, "/a");
  ASSERT_OK(a->allocate(5 * 4096 - 100));  // takes whole blocks
  EXPECT_EQ(*files.free_bytes("/"), 5 * 4096U);
  EXPECT_EQ(*a->size_bytes(), 5 * 4096U - 100);
  ASSERT_OK(a->allocate(4096));  // already allocated
  EXPECT_EQ(*a->size_bytes(), 5 * 4096U - 100);
  const Status too_much = a->allocate(11 * 4096);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(*files.free_bytes("/"), 5 * 4096U);

  auto b = open_file(drive, "/b");
  EXPECT_EQ(write_at(drive, *b, 0, filled(4 * 4096, 1)), 4 * 4096);
  EXPECT_EQ(write_at(drive, *b, 3 * 4096, filled(4 * 4096, 2)), -ENOSPC);  // room for one block
  EXPECT_EQ(drive.content("/b", SimDrive::View::kPresent), filled(4 * 4096, 1));
  EXPECT_EQ(write_at(drive, *b, 3 * 4096, filled(2 * 4096, 2)), 2 * 4096);
  EXPECT_EQ(*files.free_bytes("/"), 0U);
  EXPECT_EQ(write_at(drive, *a, 0, filled(5 * 4096, 3)), 5 * 4096);  // uses its own space
  EXPECT_EQ(write_at(drive, *b, 0, filled(5 * 4096, 3)), 5 * 4096);

  ASSERT_OK(b->truncate(4096 + 1));
  EXPECT_EQ(*files.free_bytes("/"), 3 * 4096U);
  ASSERT_OK(files.remove("/a"));
  EXPECT_EQ(*files.free_bytes("/"), 3 * 4096U);  // still open
  a.reset();
  EXPECT_EQ(*files.free_bytes("/"), 8 * 4096U);
  b.reset();
  ASSERT_OK(files.remove("/b"));
  EXPECT_EQ(*files.free_bytes("/"), 10 * 4096U);
  auto unnamed = files.open("/", {.create = OpenOptions::Create::kAnonymous});
  ASSERT_OK(unnamed);
  ASSERT_OK((*unnamed)->allocate(4096));
  EXPECT_TRUE(files.list("/")->empty());
  EXPECT_EQ(drive.used_bytes(), 4096U);
  unnamed->reset();
  EXPECT_EQ(drive.used_bytes(), 0U);
}

TEST(SimDriveOptions, RejectsWhatMakesNoSenseByName) {
  const auto message = [](const std::function<void(SimDrive::Options&)>& change) {
    SimDrive::Options options;
    change(options);
    const Status status = SimDrive::validate(options);
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_THAT(message([](auto& o) { o.read_gb_per_s = 0; }), HasSubstr("bandwidth"));
  EXPECT_THAT(message([](auto& o) { o.write_gb_per_s = std::nan(""); }), HasSubstr("bandwidth"));
  EXPECT_THAT(message([](auto& o) { o.sync_us = -1; }), HasSubstr("latencies"));
  EXPECT_THAT(message([](auto& o) { o.latency_jitter = 1.5; }), HasSubstr("jitter"));
  EXPECT_THAT(message([](auto& o) { o.depth = 0; }), HasSubstr("depth"));
  EXPECT_THAT(message([](auto& o) { o.sector_bytes = 0; }), HasSubstr("sector"));
}

// ---- names ------------------------------------------------------------------------------------

// The oracle is this machine's own file system.
TEST_F(SimDriveTest, NamesBehaveAsOnARealFileSystem) {
  const std::uint64_t seed = 17;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  RealFileSystem real;
  FileSystem& sim = drive_.files();
  const std::vector<std::string> names = {"/a",   "/b",     "/a/a",   "/a/b",   "/b/a",
                                          "/b/b", "/a/a/a", "/a/b/a", "/b/a/b/"};
  int succeeded = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::string& x = names[random() % names.size()];
    const std::string& y = names[random() % names.size()];
    const std::string rx = folder.path() + x;
    const std::string ry = folder.path() + y;
    Status from_sim;
    Status from_real;
    std::string what;
    switch (random() % 6) {
      case 0:
      case 1: {
        if (x.back() == '/') continue;  // a trailing slash when creating a file is not imitated
        const OpenOptions options{.access = OpenOptions::Access::kReadWrite,
                                  .create = static_cast<OpenOptions::Create>(random() % 3),
                                  .direct = false};
        what = "open " + x + " " + std::to_string(static_cast<int>(options.create));
        from_sim = sim.open(x, options).status();
        from_real = real.open(rx, options).status();
        break;
      }
      case 2:
        what = "make " + x;
        from_sim = sim.make_directories(x);
        from_real = real.make_directories(rx);
        break;
      case 3:
        if (x.back() == '/') continue;
        what = "remove " + x;
        from_sim = sim.remove(x);
        from_real = real.remove(rx);
        break;
      default:
        if (x.back() == '/' || y.back() == '/') continue;
        what = "rename " + x + " " + y;
        from_sim = sim.rename(x, y);
        from_real = real.rename(rx, ry);
        break;
    }
    SCOPED_TRACE(what);
    ASSERT_EQ(from_sim.ok(), from_real.ok())
        << (from_real.ok() ? from_sim : from_real).error().message();
    if (!from_sim.ok() && what.substr(0, 4) != "make") {
      // If two errors are possible, the kernel chooses which one it reports.
      const auto number = from_sim.error().error_number();
      const auto real_number = from_real.error().error_number();
      const bool either = number == real_number || what.substr(0, 6) == "rename";
      ASSERT_TRUE(either) << from_sim.error().message() << " / " << from_real.error().message();
    }
    if (from_sim.ok()) ++succeeded;
    for (const std::string& name : {std::string("/"), x, y}) {
      const auto sim_list = sim.list(name);
      const auto real_list = real.list(folder.path() + name);
      ASSERT_EQ(sim_list.ok(), real_list.ok()) << name;
      if (sim_list.ok()) {
        ASSERT_EQ(*sim_list, *real_list) << name;
      }
      ASSERT_EQ(*sim.exists(name), *real.exists(folder.path() + name)) << name;
    }
  }
  EXPECT_GT(succeeded, 1000);
}

// Runs the same story on both, so that simulated locks are compared with the machine's own.
TEST_F(SimDriveTest, LocksBehaveAsOnARealFileSystem) {
  const TemporaryFolder folder;
  RealFileSystem real;
  const std::array<std::pair<FileSystem*, std::string>, 2> both = {{
      {&drive_.files(), ""},
      {&real, folder.path()},
  }};
  for (const auto& [files, root] : both) {
    SCOPED_TRACE(root.empty() ? "simulated" : "real");
    ASSERT_OK(files->make_directories(root + "/d"));
    const auto code = [&, files = files, root = root](const std::string& path) {
      const auto lock = files->lock(root + path);
      return lock.ok() ? std::optional<ErrorCode>() : lock.error().code();
    };
    EXPECT_EQ(code("/no/lock"), ErrorCode::kNotFound);
    EXPECT_EQ(code("/d"), ErrorCode::kInvalidArgument);
    auto lock = files->lock(root + "/d/lock");
    ASSERT_OK(lock);
    EXPECT_TRUE(*files->exists(root + "/d/lock"));
    EXPECT_EQ(code("/d/lock"), ErrorCode::kBusy);
    EXPECT_EQ(code("/d//lock"), ErrorCode::kBusy) << "another spelling of the same name";
    EXPECT_EQ(code("/d/other"), std::nullopt);
    ASSERT_OK(files->rename(root + "/d/lock", root + "/d/moved"));
    EXPECT_EQ(code("/d/moved"), ErrorCode::kBusy) << "the lock goes with the file";
    EXPECT_EQ(code("/d/lock"), std::nullopt) << "which is a new one";
    ASSERT_OK(files->remove(root + "/d/moved"));
    EXPECT_EQ(code("/d/moved"), std::nullopt);
    lock->reset();
    EXPECT_EQ(code("/d/lock"), std::nullopt);
    EXPECT_TRUE(*files->exists(root + "/d/lock"));
  }
}

TEST_F(SimDriveTest, SaysOperationPathAndErrnoWhenACallFails) {
  const auto missing = drive_.files().open("/no/such", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("open /no/such failed"));
  EXPECT_THAT(missing.error().message(), HasSubstr("ENOENT"));
}

}  // namespace
}  // namespace sluice::aio
