#include "aio/striped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "aio/units.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::HasSubstr;

StripedFile::Options striping(std::uint64_t size_bytes, std::uint64_t stripe_bytes,
                              std::vector<int> weights) {
  StripedFile::Options options;
  options.stripe_bytes = stripe_bytes;
  options.weights = std::move(weights);
  options.file.open = {.access = OpenOptions::Access::kReadWrite,
                       .create = OpenOptions::Create::kMustNotExist};
  options.file.size_bytes = size_bytes;
  return options;
}

class StripedFileTest : public EveryBackend {
 protected:
  std::vector<std::string> paths(std::size_t count) const {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < count; ++i) result.push_back(folder_.file(std::to_string(i)));
    return result;
  }
  TemporaryFolder folder_;
};

TEST_P(StripedFileTest, AgreesWithAByteArrayAndAfterReopening) {
  const auto backend = this->backend(2);
  const auto queue = make_queue_or_die(*backend, {.block_bytes = 32 * kKiB, .queue_depth = 8});
  const std::uint64_t size = kMiB + 777;
  auto options = striping(size, 16 * kKiB, {3, 1, 2});
  const std::vector<std::byte> data = random_bytes(size, 11);
  {
    auto file = StripedFile::open(*queue, paths(3), options);
    ASSERT_OK(file);
    // In pieces aligned to neither sectors nor stripes.
    for (std::uint64_t offset = 0; offset < size; offset += 50'001) {
      const std::uint64_t length = std::min<std::uint64_t>(50'001, size - offset);
      ASSERT_OK(queue->write(**file, offset, std::span(data).subspan(offset, length)));
    }
    ASSERT_OK(queue->sync(**file));
  }
  options.file.open.create = OpenOptions::Create::kMustExist;
  auto file = StripedFile::open(*queue, paths(3), options);
  ASSERT_OK(file);
  std::vector<std::byte> back(size);
  ASSERT_OK(queue->read(**file, 0, back));
  EXPECT_EQ(back, data);
}

TEST_P(StripedFileTest, GivesEachFileItsShareAndEveryByteOnePlace) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  const std::uint64_t stripe = 4096;
  const std::uint64_t size = 600 * stripe;
  auto file = StripedFile::open(*queue, paths(3), striping(size, stripe, {3, 1, 2}));
  ASSERT_OK(file);
  std::map<const File*, std::set<std::uint64_t>> places;
  for (std::uint64_t offset = 0; offset < size; offset += stripe) {
    const Extent extent = (*file)->locate(offset, size - offset);
    EXPECT_EQ(extent.length_bytes, stripe);
    EXPECT_TRUE(places[extent.file].insert(extent.offset_bytes).second) << offset;
  }
  const auto files = (*file)->files();
  EXPECT_EQ(places[files[0]].size(), 300U);
  EXPECT_EQ(places[files[1]].size(), 100U);
  EXPECT_EQ(places[files[2]].size(), 200U);
  for (std::size_t i = 0; i < 3; ++i) {
    // Without gaps: all places below the highest are used.
    EXPECT_EQ(*places[files[i]].rbegin() + stripe, places[files[i]].size() * stripe);
    EXPECT_EQ(StripedFile::bytes_of_files(size, stripe, {3, 1, 2})[i],
              places[files[i]].size() * stripe);
  }
}

TEST_P(StripedFileTest, HoldsRangesShorterThanOneCycle) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{8191}}) {
    TemporaryFolder folder;
    auto file = StripedFile::open(*queue, {folder.file("a"), folder.file("b"), folder.file("c")},
                                  striping(size, 4096, {}));
    ASSERT_OK(file);
    const auto data = random_bytes(size, size);
    std::vector<std::byte> back(size);
    ASSERT_OK(queue->write(**file, 0, data));
    ASSERT_OK(queue->read(**file, 0, back));
    ASSERT_OK(queue->sync(**file));
    EXPECT_EQ(back, data);
  }
}

TEST_P(StripedFileTest, SaysBeforehandHowManyBytesLieInEachFile) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  const std::uint64_t stripe = 8192;
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4 * 8192}, 7 * stripe - 4097,
                                   61 * stripe, 61 * stripe + 5000}) {
    SCOPED_TRACE(size);
    const TemporaryFolder folder;
    const std::vector<std::string> paths = {folder.file("a"), folder.file("b")};
    const std::vector<int> weights = {3, 1};
    const auto bytes = StripedFile::bytes_of_files(size, stripe, weights);
    auto file = StripedFile::open(*queue, paths, striping(size, stripe, weights));
    ASSERT_OK(file);
    // The end of the last extent in each file, from locate().
    std::map<const File*, std::uint64_t> ends;
    for (std::uint64_t offset = 0; offset < size;) {
      const Extent extent = (*file)->locate(offset, size - offset);
      ends[extent.file] = std::max(ends[extent.file], extent.offset_bytes + extent.length_bytes);
      offset += extent.length_bytes;
    }
    ASSERT_OK(queue->sync(**file));
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::uint64_t end = ends[(*file)->files()[i]];
      EXPECT_GE(bytes[i], end);
      EXPECT_LT(bytes[i], std::max<std::uint64_t>(end, 1) + 4096);
      EXPECT_GE(bytes[i], std::filesystem::file_size(paths[i]));
    }
  }
}

TEST_P(StripedFileTest, LeavesNothingBehindWhenOneFileCannotBeMade) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  const auto file =
      StripedFile::open(*queue, {folder_.file("a"), folder_.file("b"), folder_.file("no/such/c")},
                        striping(kMiB, 4096, {}));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(file.error().message(), HasSubstr("no/such/c"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(StripedFileTest, SaysWhichOptionIsWrong) {
  const auto backend = this->backend();
  const auto queue = make_queue_or_die(*backend, {});
  const auto message = [&](const std::vector<std::string>& where,
                           StripedFile::Options options) -> std::string {
    const auto file = StripedFile::open(*queue, where, options);
    if (file.ok()) return "accepted";
    EXPECT_EQ(file.error().code(), ErrorCode::kInvalidArgument);
    return file.error().message();
  };
  EXPECT_THAT(message({}, striping(4096, 4096, {})), HasSubstr("at least one path"));
  EXPECT_THAT(message(paths(2), striping(4096, 4096, {1})), HasSubstr("2 paths"));
  EXPECT_THAT(message(paths(2), striping(4096, 4096, {1, 0})), HasSubstr("stripe weight"));
  EXPECT_THAT(message(paths(2), striping(4096, 4096, {1, 65})), HasSubstr("stripe weight"));
  EXPECT_THAT(message(paths(1), striping(4096, 1000, {})), HasSubstr("stripe size"));
  EXPECT_THAT(message(paths(1), striping(0, 4096, {})), HasSubstr("total size"));
  EXPECT_THAT(message({"/x", "/x"}, striping(4096, 4096, {})), HasSubstr("twice"));
}

SLUICE_TEST_EVERY_BACKEND(StripedFileTest);

TEST(StripedFileWeights, FollowMeasuredSpeeds) {
  const auto weights = [](std::vector<double> speeds) {
    return StripedFile::weights_from_speeds(speeds);
  };
  EXPECT_EQ(weights({3.0, 3.0}), (std::vector<int>{1, 1}));
  EXPECT_EQ(weights({3.0, 3.1}), (std::vector<int>{1, 1}));  // within 5%
  EXPECT_EQ(weights({6.0, 3.0}), (std::vector<int>{2, 1}));
  EXPECT_EQ(weights({3.0, 2.0}), (std::vector<int>{3, 2}));
  EXPECT_EQ(weights({7.0, 3.5, 1.75}), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(weights({0.0, 1.0}), (std::vector<int>{1, 1}));  // no measurement: equal
  EXPECT_EQ(weights({1e9, 1.0}), (std::vector<int>{64, 1}));
}

}  // namespace
}  // namespace sluice::aio
