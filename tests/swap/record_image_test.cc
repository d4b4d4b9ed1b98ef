#include "swap/record_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "aio/page_memory.h"
#include "aio/split_mix.h"
#include "swap/chunk_hash.h"
#include "swap/chunk_hash_kernels.h"
#include "swap/record_work.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::swap {
namespace {

using testing::HasSubstr;

constexpr RecordShape kShape = {.store_id = 0xABCD,
                                .record = 7,
                                .first_element = 1000,
                                .elements = 20'000,
                                .payload_bytes = 200'000,
                                .chunk_bytes = 65'536};

class RecordImageTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = std::move(aio::PageMemory::map(kShape.image_bytes(), false)).value();
    executor_ = std::move(aio::make_executor(2)).value();
    image_.emplace(kShape, memory_.bytes().first(kShape.image_bytes()));
    const auto random = aio::random_bytes(kShape.payload_bytes, 3);
    std::memcpy(image_->payload().data(), random.data(), random.size());
    seal(5);
  }
  void seal(std::uint64_t generation) {
    ASSERT_OK(work_on_record(*executor_, *image_, {.seal = generation}));
  }
  Status check(std::uint64_t generation = 5) {
    return work_on_record(*executor_, *image_, {.check = generation});
  }
  void flip(std::uint64_t bit) { image_->bytes()[bit / 8] ^= std::byte(1 << bit % 8); }

  aio::PageMemory memory_;
  std::unique_ptr<aio::Executor> executor_;
  std::optional<RecordImage> image_;
};

TEST_F(RecordImageTest, AcceptsWhatItSealed) { ASSERT_OK(check()); }

TEST_F(RecordImageTest, HasTheDocumentedBytes) {
  const std::byte* bytes = image_->bytes().data();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes), 8), "SLUICERC");
  const auto number = [&](std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + offset, 8);
    return value;
  };
  EXPECT_EQ(number(8), 1 | std::uint64_t{4} << 32);  // version, chunks
  EXPECT_EQ(number(16), 0xABCDU);
  EXPECT_EQ(number(24), 7U);
  EXPECT_EQ(number(32), 5U);
  EXPECT_EQ(number(40), 1000U);
  EXPECT_EQ(number(48), 20'000U);
  EXPECT_EQ(number(56), 200'000U);
  EXPECT_EQ(number(64), 65'536U);
  const std::uint64_t seed_of_chunk_1[] = {0xABCD, 7, 5, 4096 + 65'536};
  const std::uint64_t seed = hash_sse2(seed_of_chunk_1, 32, 0);
  EXPECT_EQ(number(248 + 8), hash_sse2(bytes + 4096 + 65'536, 65'536, seed));
  EXPECT_EQ(number(248 + 4 * 8), 0U);
}

TEST_F(RecordImageTest, ReportsEverySingleBitFlipOfTheHeader) {
  for (std::uint64_t bit = 0; bit < 8 * kRecordHeaderBytes; ++bit) {
    flip(bit);
    const Status checked = check();
    ASSERT_FALSE(checked.ok()) << "bit " << bit;
    ASSERT_EQ(checked.error().code(), ErrorCode::kCorrupt);
    flip(bit);
  }
  ASSERT_OK(check());
}

TEST_F(RecordImageTest, ReportsAThousandFlipsOfThePayloadAndSaysWhere) {
  aio::SplitMix random(11);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bit = random.below(8 * kShape.payload_bytes);
    flip(8 * kRecordHeaderBytes + bit);
    const Status checked = check();
    ASSERT_FALSE(checked.ok()) << "bit " << bit;
    const std::uint64_t chunk_begin =
        kRecordHeaderBytes + bit / 8 / kShape.chunk_bytes * kShape.chunk_bytes;
    EXPECT_THAT(checked.error().message(), HasSubstr("bytes " + std::to_string(chunk_begin)));
    flip(8 * kRecordHeaderBytes + bit);
  }
  ASSERT_OK(check());
}

TEST_F(RecordImageTest, TellsAStaleRecordFromADamagedOne) {
  EXPECT_THAT(check(6).error().message(), HasSubstr("a write was lost"));
}

TEST_F(RecordImageTest, TellsAnotherRecordInItsPlace) {
  RecordShape other = kShape;
  other.record = 8;
  RecordImage there(other, image_->bytes());
  EXPECT_THAT(there.check_header(5).error().message(), HasSubstr("record 7"));
  other.record = 7;
  other.store_id = 1;
  RecordImage elsewhere(other, image_->bytes());
  EXPECT_THAT(elsewhere.check_header(5).error().message(), HasSubstr("another store"));
}

// Every place where a write of the next generation can stop, sector by sector, from either end.
TEST_F(RecordImageTest, ReportsEveryTornWrite) {
  const std::vector<std::byte> before(image_->bytes().begin(), image_->bytes().end());
  for (std::byte& b : image_->payload()) b ^= std::byte{0x5A};
  seal(6);
  const std::vector<std::byte> after(image_->bytes().begin(), image_->bytes().end());
  for (std::size_t cut = 512; cut < after.size(); cut += 512) {
    if (cut >= kRecordHeaderBytes + kShape.payload_bytes) break;  // only padding is missing
    std::copy_n(after.begin(), cut, image_->bytes().begin());
    std::copy(before.begin() + static_cast<std::ptrdiff_t>(cut), before.end(),
              image_->bytes().begin() + static_cast<std::ptrdiff_t>(cut));
    ASSERT_FALSE(check(6).ok()) << "only the first " << cut << " bytes landed";
    ASSERT_FALSE(check(5).ok()) << "only the first " << cut << " bytes landed";
    std::copy_n(before.begin(), cut, image_->bytes().begin());
    std::copy(after.begin() + static_cast<std::ptrdiff_t>(cut), after.end(),
              image_->bytes().begin() + static_cast<std::ptrdiff_t>(cut));
    ASSERT_FALSE(check(6).ok()) << "the first " << cut << " bytes did not land";
    ASSERT_FALSE(check(5).ok()) << "the first " << cut << " bytes did not land";
  }
}

TEST_F(RecordImageTest, ReportsChunksThatChangedPlaces) {
  std::swap_ranges(image_->chunk(0).begin(), image_->chunk(0).end(), image_->chunk(1).begin());
  EXPECT_FALSE(check().ok());
}

TEST_F(RecordImageTest, WorksOnEachChunkOnceAndOnlyIfItIsIntact) {
  flip(8 * (kRecordHeaderBytes + 2 * kShape.chunk_bytes));
  std::mutex mutex;
  std::multiset<int> worked;
  const Status status =
      work_on_record(*executor_, *image_, {.check = 5, .seal = 6, .work = [&](int chunk, auto) {
                                             const std::lock_guard lock(mutex);
                                             worked.insert(chunk);
                                           }});
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(worked.count(2), 0U);
  for (const int chunk : {0, 1, 3}) EXPECT_LE(worked.count(chunk), 1U);
}

TEST_F(RecordImageTest, SealsWhatTheWorkLeft) {
  ASSERT_OK(work_on_record(*executor_, *image_,
                           {.check = 5, .seal = 6, .work = [](int, std::span<std::byte> data) {
                              for (std::byte& b : data) b ^= std::byte{1};
                            }}));
  ASSERT_OK(check(6));
  const auto random = aio::random_bytes(kShape.payload_bytes, 3);
  for (std::size_t i = 0; i < random.size(); ++i)
    ASSERT_EQ(image_->payload()[i], random[i] ^ std::byte{1});
}

TEST_F(RecordImageTest, LeavesZerosBehindThePayload) {
  for (std::byte& b : image_->bytes().subspan(kRecordHeaderBytes + kShape.payload_bytes))
    b = std::byte{0xFF};
  seal(6);
  for (const std::byte b : image_->bytes().subspan(kRecordHeaderBytes + kShape.payload_bytes))
    ASSERT_EQ(b, std::byte{0});
}

// Reference values of the xxHash project: the format must not depend on the machine that computes
// it.
TEST(ChunkHash, IsXxh3WithEveryInstructionSet) {
  EXPECT_EQ(hash_sse2("", 0, 0), 0x2D06800538D394C2U);
  const auto bytes = aio::random_bytes(1 << 20, 9);
  for (const std::size_t size : {0U, 1U, 3U, 16U, 17U, 128U, 129U, 240U, 241U, 1024U, 1048576U}) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x9E3779B185EBCA8D}}) {
      if (__builtin_cpu_supports("avx2")) {
        EXPECT_EQ(hash_avx2(bytes.data(), size, seed), hash_sse2(bytes.data(), size, seed));
      }
    }
  }
}

TEST(ChunkHash, DependsOnEveryPartOfThePlace) {
  const auto bytes = aio::random_bytes(4096, 1);
  const ChunkPlace place = {.store_id = 1, .record = 2, .generation = 3, .offset_bytes = 4};
  std::set<std::uint64_t> hashes = {chunk_hash(bytes, place)};
  for (std::uint64_t ChunkPlace::*part : {&ChunkPlace::store_id, &ChunkPlace::record,
                                          &ChunkPlace::generation, &ChunkPlace::offset_bytes}) {
    ChunkPlace other = place;
    other.*part += 1;
    EXPECT_TRUE(hashes.insert(chunk_hash(bytes, other)).second);
  }
}

}  // namespace
}  // namespace sluice::swap
