// Damaged headers and indexes: no crash, no read beyond the bytes, a sentence for every refusal,
// and consistent results. Each text is copied to memory of exact size, so AddressSanitizer detects
// reads beyond it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <random>

#include "engine/weights/safetensors_header.h"
#include "engine/weights/safetensors_index.h"
#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kWords[] = {"0",
                                       "-1",
                                       "1e400",
                                       "18446744073709551615",
                                       "null",
                                       "true",
                                       "{}",
                                       "[]",
                                       "[[[[",
                                       "{\"a\":",
                                       "\"",
                                       ",",
                                       ":",
                                       "}",
                                       "]",
                                       "\"F32\"",
                                       "\"BF16\"",
                                       "\"dtype\"",
                                       "\"shape\"",
                                       "\"data_offsets\"",
                                       "\"__metadata__\"",
                                       "\xff",
                                       "\\u0000",
                                       "4294967296",
                                       "9223372036854775807",
                                       "[0,0]",
                                       "\"weight_map\"",
                                       " "};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t limit) { return random_() % limit; }

  std::string mutate(std::string text) {
    if (below(8) == 0) return text;  // so that some are accepted
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) edit(text);
    return text;
  }

 private:
  void edit(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        text.erase(at, 1 + below(8));
        return;
      case 2:
        text.insert(at, kWords[below(std::size(kWords))]);
        return;
      case 3:
        text.resize(at);
        return;
      case 4:
        text.insert(at, text.substr(below(text.size() + 1), below(60)));
        return;
      case 5: {  // a number becomes another
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text.replace(digit, 1, kWords[below(std::size(kWords))]);
        return;
      }
      default:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
    }
  }
  std::mt19937_64 random_;
};

void expect_sentence(const Error& error) {
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_GE(error.message().size(), 10U);
  EXPECT_LT(error.message().size(), 2000U);
  EXPECT_NE(error.message().find(' '), std::string::npos) << error.message();
  for (const char c : error.message())
    ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20) << "no control characters";
}

// An accepted header must be safe to allocate and read by.
void expect_consistent(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin_bytes, end);
    ASSERT_EQ(tensor.size_bytes, tensor.elements * element_bytes(tensor.dtype));
    end += tensor.size_bytes;
  }
  ASSERT_EQ(end, data_bytes);
}

struct Counts {
  int accepted = 0;
  int refused = 0;
};

template <typename Parse>
void try_copy(const std::string& text, Parse parse) {
  const auto copy = std::make_unique<char[]>(text.size());  // NOLINT(modernize-avoid-c-arrays)
  std::memcpy(copy.get(), text.data(), text.size());
  parse(std::string_view(copy.get(), text.size()));
}

Counts fuzz_headers(int inputs, std::uint64_t seed) {
  Mutator mutator(seed);
  std::vector<std::string> seeds;
  std::vector<std::uint64_t> data_bytes;
  for (const auto& tensors :
       {test_tensors(), std::vector<TensorSpec>{{"a", DType::kF32, {2}}},
        std::vector<TensorSpec>{{"a", DType::kF16, {1, 2, 3}}, {"b", DType::kBF16, {}}}}) {
    const auto places = lay_out(tensors);
    seeds.push_back(make_safetensors_header(*places, {{"format", "pt"}}).substr(8));
    data_bytes.push_back(places->back().begin_bytes + places->back().size_bytes);
  }
  Counts counts;
  for (int i = 0; i < inputs; ++i) {
    const std::size_t which = mutator.below(seeds.size());
    try_copy(mutator.mutate(seeds[which]), [&](std::string_view text) {
      const auto header = parse_safetensors_json(text, data_bytes[which]);
      if (!header.ok()) {
        ++counts.refused;
        return expect_sentence(header.error());
      }
      ++counts.accepted;
      expect_consistent(*header, data_bytes[which]);
    });
  }
  return counts;
}

Counts fuzz_indexes(int inputs, std::uint64_t seed) {
  Mutator mutator(seed);
  const std::string whole =
      make_safetensors_index({{"a", "model-00001-of-00002.safetensors"},
                              {"b.weight", "model-00002-of-00002.safetensors"},
                              {"c", "model-00001-of-00002.safetensors"}},
                             1234);
  Counts counts;
  for (int i = 0; i < inputs; ++i) {
    try_copy(mutator.mutate(whole), [&](std::string_view text) {
      const auto index = parse_safetensors_index(text);
      if (!index.ok()) {
        ++counts.refused;
        return expect_sentence(index.error());
      }
      ++counts.accepted;
      for (const auto& [tensor, file] : *index)
        ASSERT_EQ(file.find_first_of(std::string_view("/\0", 2)), std::string::npos);
    });
  }
  return counts;
}

// Whole files through the reader, whose length prefix is damaged too.
Counts fuzz_files(int inputs, std::uint64_t seed) {
  Mutator mutator(seed);
  const aio::TemporaryFolder folder;
  const auto backend = aio::make_backend_or_die(aio::BackendKind::kPosix);
  const auto queue = aio::make_queue_or_die(*backend, {});
  const std::string path = folder.file("m.safetensors");
  const std::string whole = file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                                    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]}})",
                                    "0123456789abcdef");
  Counts counts;
  for (int i = 0; i < inputs; ++i) {
    put_file(path, mutator.mutate(whole));
    const auto reader = SafetensorsReader::open(*queue, path, {.staging_bytes = 1});
    if (!reader.ok()) {
      ++counts.refused;
      expect_sentence(reader.error());
      continue;
    }
    ++counts.accepted;
    for (const TensorInfo& tensor : (*reader)->tensors()) {
      if (!is_weight_dtype(tensor.dtype)) continue;
      std::vector<float> values(tensor.elements);
      EXPECT_OK((*reader)->read(tensor.name, 0, values));
    }
  }
  return counts;
}

void fuzz(int inputs, int files) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  const Counts headers = fuzz_headers(inputs, seed);
  const Counts indexes = fuzz_indexes(inputs, seed);
  const Counts whole = fuzz_files(files, seed);
  for (const Counts& counts : {headers, indexes, whole}) {
    std::cout << counts.accepted << " accepted, " << counts.refused << " refused\n";
    EXPECT_GT(counts.refused, (counts.accepted + counts.refused) / 3);
    EXPECT_GT(counts.accepted, 0);
  }
}

TEST(SafetensorsFuzz, RefusesDamagedHeadersBySentences) { fuzz(500, 100); }
TEST(LongSafetensorsFuzz, RefusesDamagedHeadersBySentences) { fuzz(10'000, 2'000); }

}  // namespace
}  // namespace sluice::engine
