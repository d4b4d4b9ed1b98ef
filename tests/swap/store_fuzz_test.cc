// Damaged manifests and record headers of a store: no crash, no read beyond the bytes, a sentence
// for every refusal, and consistent results. Each text is copied to memory of exact size, so
// AddressSanitizer detects reads beyond it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <random>

#include "aio/page_memory.h"
#include "swap/chunk_hash.h"
#include "swap/record_image.h"
#include "swap/store_manifest.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/sealed_json_mutator.h"

namespace sluice::swap {
namespace {

struct Counts {
  int accepted = 0;
  int refused = 0;
};

void expect_sentence(const Error& error) {
  EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kNewerVersion ||
              error.code() == ErrorCode::kInvalidArgument)
      << error.message();
  EXPECT_GE(error.message().size(), 10U);
  EXPECT_LT(error.message().size(), 4000U);
  EXPECT_NE(error.message().find(' '), std::string::npos) << error.message();
}

StoreLayout test_layout() {
  auto layout = StoreLayout::create(
      {.store_id = 0xABCD,
       .run = "gpt",
       .paths = {"/nvme0", "/nvme1"},
       .weights = {2, 1},
       .stripe_bytes = 65'536,
       .chunk_bytes = 65'536},
      {{"h.0", 0, 30'000, 300'000}, {"h.0", 30'000, 1000, 10'001}, {"ln_f", 0, 7, 70}});
  return std::move(layout).value();
}

// An accepted manifest is safe to read by: records follow each other, and none is too large for a
// header.
void expect_consistent(const StoreManifest& manifest) {
  const StoreLayout& layout = manifest.layout;
  ASSERT_LT(manifest.member, layout.options().paths.size());
  ASSERT_FALSE(layout.records().empty());
  std::uint64_t end = 0;
  for (RecordId id = 0; id < layout.records().size(); ++id) {
    const RecordShape shape = layout.shape(id);
    ASSERT_EQ(layout.offset_bytes(id), end);
    ASSERT_GE(shape.chunk_count(), 1);
    ASSERT_LE(static_cast<std::uint64_t>(shape.chunk_count()), kMaxChunks);
    ASSERT_LE(shape.image_bytes(), layout.largest_image_bytes());
    end += shape.image_bytes();
  }
  ASSERT_EQ(layout.total_bytes(), end * static_cast<std::uint64_t>(layout.options().places));
}

// Half of the texts have a valid checksum.
Counts fuzz_texts(int inputs, std::uint64_t seed, const std::string& whole,
                  const std::function<Status(std::string_view)>& parse) {
  SealedJsonMutator mutator(seed);
  const nlohmann::json content = nlohmann::json::parse(whole)["content"];
  Counts counts;
  for (int i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    const std::string text = i % 2 == 0 ? mutator.damaged(whole) : mutator.sealed(content);
    const auto copy = std::make_unique<char[]>(text.size());  // NOLINT(modernize-avoid-c-arrays)
    std::memcpy(copy.get(), text.data(), text.size());
    const Status status = parse({copy.get(), text.size()});
    ++(status.ok() ? counts.accepted : counts.refused);
    if (!status.ok()) expect_sentence(status.error());
  }
  return counts;
}

// Changes bytes of a header, half of the time with a valid checksum.
Counts fuzz_headers(int inputs, std::uint64_t seed) {
  constexpr RecordShape kShape = {.store_id = 0xABCD,
                                  .record = 7,
                                  .first_element = 1000,
                                  .elements = 2000,
                                  .payload_bytes = 20'000,
                                  .chunk_bytes = 8192};
  constexpr std::uint64_t kGeneration = 5;
  const auto memory = std::move(aio::PageMemory::map(kShape.image_bytes(), false)).value();
  RecordImage image(kShape, memory.bytes().first(kShape.image_bytes()));
  image.begin_seal(kGeneration);
  for (int i = 0; i < image.chunk_count(); ++i) image.seal_chunk(i, kGeneration);
  image.finish_seal();
  const std::vector<std::byte> whole(image.bytes().begin(),
                                     image.bytes().begin() + kRecordHeaderBytes);
  std::mt19937_64 random(seed);
  Counts counts;
  for (int i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    std::copy(whole.begin(), whole.end(), image.bytes().begin());
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      // Mostly within the fields, also in whole words.
      const std::size_t at = random() % (random() % 4 == 0 ? kRecordHeaderBytes : 72);
      const std::uint64_t word = random() % 2 == 0 ? random() : ~std::uint64_t{0} >> random() % 64;
      std::memcpy(image.bytes().data() + std::min(at, kRecordHeaderBytes - 8), &word,
                  1 + random() % 8);
    }
    if (i % 2 == 0) image.finish_seal();
    const bool same_fields = std::equal(whole.begin(), whole.begin() + 72, image.bytes().begin());
    const bool same = std::equal(whole.begin(), whole.end(), image.bytes().begin());
    const Status header = image.check_header(kGeneration);
    if (!header.ok()) {
      ++counts.refused;
      expect_sentence(header.error());
    } else {
      ++counts.accepted;  // the changes were in checksums of chunks
      EXPECT_TRUE(same_fields);
      EXPECT_TRUE(same || i % 2 == 0);
    }
    if (const auto claimed = image.claimed_generation(); !claimed.ok())
      expect_sentence(claimed.error());
    for (int chunk = 0; chunk < image.chunk_count(); ++chunk) {
      const bool same_hash =
          std::equal(whole.begin() + 248 + 8 * chunk, whole.begin() + 256 + 8 * chunk,
                     image.bytes().begin() + 248 + 8 * chunk);
      EXPECT_EQ(image.check_chunk(chunk, kGeneration).ok(), same_hash);
    }
  }
  return counts;
}

void fuzz(int inputs, std::uint64_t seed) {
  std::cout << "seed " << seed << "\n";
  const Counts manifests =
      fuzz_texts(inputs, seed, to_text(test_layout(), 1), [](std::string_view text) -> Status {
        SLUICE_ASSIGN_OR_RETURN(const StoreManifest manifest, parse_manifest(text));
        expect_consistent(manifest);
        return {};
      });
  const Counts headers = fuzz_headers(inputs, seed);
  for (const Counts& counts : {manifests, headers}) {
    std::cout << counts.accepted << " accepted, " << counts.refused << " refused\n";
    EXPECT_GT(counts.refused, inputs / 3);
    EXPECT_GT(counts.accepted, 0);
  }
}

TEST(StoreFuzz, RefusesDamagedManifestsAndHeaders) { fuzz(1000, 31); }
TEST(LongStoreFuzz, RefusesDamagedManifestsAndHeaders) { fuzz(10'000, std::random_device()()); }

}  // namespace
}  // namespace sluice::swap
