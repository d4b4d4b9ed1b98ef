// A frozen generation is read chunk by chunk, in any order, and only if every byte is its own.
#include "swap/frozen_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "aio/page_memory.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "swap/record_image.h"
#include "swap/store_files.h"
#include "swap/store_manifest.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::swap {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kChunkBytes = 4160;  // no multiple of a sector

class FrozenRecordsOn : public testing::Test {
 protected:
  // Records of more chunks than two windows have, of one short chunk, and of a window exactly.
  void SetUp() override {
    for (std::size_t member = 0; member < frozen_.paths.size(); ++member) {
      const std::string folder = folder_of(frozen_.paths[member], frozen_.run);
      ASSERT_OK(drive_.files().make_directories(folder));
      ASSERT_OK(aio::write_small_file(*queue_, manifest_path(folder), to_text(layout_, member)));
      files_.push_back(data_path(folder));
    }
    aio::StripedFile::Options options;
    options.stripe_bytes = layout_.options().stripe_bytes;
    options.file.open.access = aio::OpenOptions::Access::kReadWrite;
    options.file.open.create = aio::OpenOptions::Create::kIfMissing;
    options.file.size_bytes = layout_.total_bytes();
    auto opened = aio::StripedFile::open(*queue_, files_, options);
    ASSERT_OK(opened);
    data_ = std::move(*opened);
    for (RecordId id = 0; id < layout_.records().size(); ++id) {
      const FrozenRecord frozen = frozen_.records[id];
      write(id, frozen);
      write(id, {.generation = frozen.generation + 1, .place = 1 - frozen.place});  // a later one
    }
  }

  std::vector<std::byte> content(RecordId id, std::uint64_t generation) const {
    return aio::random_bytes(layout_.record(id).payload_bytes, 1000 * generation + id);
  }
  void write(RecordId id, const FrozenRecord& at) {
    const RecordShape shape = layout_.shape(id);
    const auto memory = aio::PageMemory::map(shape.image_bytes(), false);
    RecordImage image(shape, memory->bytes().first(shape.image_bytes()));
    const auto bytes = content(id, at.generation);
    std::copy(bytes.begin(), bytes.end(), image.payload().begin());
    image.begin_seal(at.generation);
    for (int i = 0; i < image.chunk_count(); ++i) image.seal_chunk(i, at.generation);
    image.finish_seal();
    ASSERT_OK(queue_->write(*data_, layout_.offset_bytes(id, at.place), image.bytes()));
  }
  Status read(FrozenRecords& records, RecordId id, int chunk) {
    const auto whole = content(id, frozen_.records[id].generation);
    const auto begin = static_cast<std::uint64_t>(chunk) * kChunkBytes;
    const auto expected =
        std::span(whole).subspan(begin, std::min<std::uint64_t>(kChunkBytes, whole.size() - begin));
    std::vector<std::byte> bytes(expected.size());
    SLUICE_RETURN_IF_ERROR(records.read_chunk(id, chunk, bytes));
    EXPECT_TRUE(aio::same_bytes(bytes, expected)) << id << ", chunk " << chunk;
    return {};
  }
  std::unique_ptr<FrozenRecords> open() {
    return std::move(FrozenRecords::open(*queue_, frozen_)).value();
  }
  Error open_error() {
    const auto opened = FrozenRecords::open(*queue_, frozen_);
    return opened.ok() ? Error(ErrorCode::kInternal, "it was opened") : opened.error();
  }

  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 8192, .queue_depth = 8});
  FrozenStore frozen_ = {.run = "a",
                         .paths = {"/nvme0", "/nvme1"},
                         .store_id = 5,
                         .records = {{7, 0}, {3, 1}, {9, 1}}};
  const StoreLayout layout_ = StoreLayout::create({.store_id = 5,
                                                   .run = "a",
                                                   .paths = frozen_.paths,
                                                   .stripe_bytes = 16384,
                                                   .chunk_bytes = kChunkBytes,
                                                   .places = 2},
                                                  {{"h.0", 0, 1000, 37 * kChunkBytes + 100},
                                                   {"h.1", 0, 10, 77},
                                                   {"h.2", 0, 1000, 8 * kChunkBytes}})
                                  .value();
  std::vector<std::string> files_;
  std::unique_ptr<aio::StripedFile> data_;
};

TEST_F(FrozenRecordsOn, AreReadInOrderAndInAnyOther) {
  const auto records = open();
  for (int round = 0; round < 2; ++round) {
    for (RecordId id = 0; id < layout_.records().size(); ++id)
      for (int i = 0; i < layout_.shape(id).chunk_count(); ++i) ASSERT_OK(read(*records, id, i));
  }
  for (int i = 37; i >= 0; --i) ASSERT_OK(read(*records, 0, i));
  for (int i = 0; i < 8; ++i) {  // two records in turn
    ASSERT_OK(read(*records, 2, i));
    ASSERT_OK(read(*records, 0, 4 * i));
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    const auto id = static_cast<RecordId>(random() % layout_.records().size());
    const auto chunks = static_cast<std::uint64_t>(layout_.shape(id).chunk_count());
    ASSERT_OK(read(*records, id, static_cast<int>(random() % chunks)));
  }
}

TEST_F(FrozenRecordsOn, AreRefusedOnceOverwritten) {
  const auto records = open();
  ASSERT_OK(read(*records, 1, 0));
  write(0, {.generation = 9, .place = 0});
  const Status stale = read(*records, 0, 0);
  ASSERT_FALSE(stale.ok());
  EXPECT_EQ(stale.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(stale.error().message(), HasSubstr("record h.0[0..1000): it is of generation 9"));
  EXPECT_THAT(stale.error().message(), HasSubstr("has saved a newer checkpoint meanwhile"));
  write(0, frozen_.records[0]);
  ASSERT_OK(read(*records, 0, 0));
  write(0, {.generation = 9, .place = 0});  // the header was read, and later chunks were not
  EXPECT_EQ(read(*records, 0, 36).error().code(), ErrorCode::kCorrupt);
}

TEST_F(FrozenRecordsOn, AreNotOpenedInAnotherStoreOrWithoutOne) {
  frozen_.store_id = 6;
  EXPECT_EQ(open_error().code(), ErrorCode::kCorrupt);
  frozen_.store_id = 5;
  std::swap(frozen_.paths[0], frozen_.paths[1]);
  EXPECT_EQ(open_error().code(), ErrorCode::kCorrupt);
  std::swap(frozen_.paths[0], frozen_.paths[1]);
  frozen_.records[1].place = 2;
  EXPECT_EQ(open_error().code(), ErrorCode::kCorrupt);
  frozen_.records[1].place = 1;
  frozen_.records.pop_back();
  EXPECT_EQ(open_error().code(), ErrorCode::kCorrupt);
  frozen_.records.push_back({9, 1});
  ASSERT_OK(FrozenRecords::open(*queue_, frozen_).status());
  ASSERT_OK(drive_.files().remove(manifest_path("/nvme1/sluice-a")));
  EXPECT_EQ(open_error().code(), ErrorCode::kCorrupt) << "a part of it is there";
  EXPECT_THAT(open_error().message(), HasSubstr("/nvme1/sluice-a"));
  frozen_.run = "b";
  EXPECT_EQ(open_error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice::swap
