// Damaged token files, in process: no crash, no read beyond the bytes (buffers have the exact size,
// so AddressSanitizer detects it), and a sentence for every refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "engine/data/token_file.h"
#include "engine/data/token_layout.h"
#include "engine/data/token_sidecar.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/data/token_files_for_tests.h"

namespace sluice::data {
namespace {

using Bytes = std::vector<std::byte>;

void expect_sentence(const Error& error) {
  ASSERT_GE(error.message().size(), 8U);  // "is empty"
  ASSERT_NE(error.message().find(' '), std::string::npos) << error.message();
  ASSERT_EQ(error.message().find('\n'), std::string::npos) << error.message();
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void mutate(Bytes& bytes) {
    for (std::uint64_t count = 1 + below(3); count > 0; --count) {
      switch (below(6)) {
        case 0:
          flip(bytes, bytes.size());
          break;
        case 1:
          flip(bytes, 16);  // in the fields of a header
          break;
        case 2:
          bytes.resize(below(bytes.size() + 1));
          break;
        case 3:
          bytes.resize(bytes.size() + below(100), static_cast<std::byte>(below(256)));
          break;
        case 4:
          overwrite_word(bytes);
          break;
        default:
          if (!bytes.empty()) {
            const std::size_t from = below(bytes.size());
            const Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.end());
            bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())),
                         piece.begin(),
                         piece.begin() + static_cast<std::ptrdiff_t>(below(piece.size() + 1)));
          }
      }
    }
  }

 private:
  void flip(Bytes& bytes, std::size_t within) {
    const std::size_t size = std::min(bytes.size(), within);
    if (size > 0) bytes[below(size)] ^= static_cast<std::byte>(1U << below(8));
  }
  void overwrite_word(Bytes& bytes) {
    static constexpr std::array<std::int32_t, 9> kWords = {
        0, 1, 7, -1, 20240520, 20240801, 20240522, 0x7FFFFFFF, -0x7FFFFFFF - 1};
    const std::size_t words = std::min<std::size_t>(bytes.size() / 4, 4);
    if (words == 0) return;
    const std::int32_t word = kWords[below(kWords.size())];
    std::memcpy(bytes.data() + 4 * below(words), &word, sizeof(word));
  }

  std::mt19937_64 random_;
};

const std::vector<Bytes>& file_seeds() {
  static const std::vector<Bytes> kSeeds = {
      llmc_file(20240520, 1, counting_tokens(50)),
      llmc_file(20240801, 7, std::vector<std::uint32_t>(20, 128000)),
      llmc_file(20240522, 1, counting_tokens(5)),
      bytes_of(counting_tokens(700)),
      bytes_of(counting_tokens(1)),
      {},
  };
  return kSeeds;
}

// Parses `bytes` from a buffer of exact size, and checks the result against the file's size.
bool parse(const Bytes& bytes) {
  const std::size_t head_bytes = std::min<std::size_t>(bytes.size(), kTokenHeaderBytes);
  const std::unique_ptr<std::byte[]> head(new std::byte[head_bytes]);
  std::copy_n(bytes.begin(), head_bytes, head.get());
  const auto announced = header_layout({head.get(), head_bytes}, bytes.size());
  if (!announced.ok()) {
    expect_sentence(announced.error());
    return false;
  }
  const auto layout =
      *announced ? Result<TokenLayout>(**announced) : raw_layout(TokenType::kUint16, bytes.size());
  if (!layout.ok()) {
    expect_sentence(layout.error());
    return false;
  }
  EXPECT_GE(layout->token_count, 1U);
  EXPECT_EQ(layout->first_byte + layout->token_count * token_bytes(layout->type), bytes.size());
  return true;
}

void damage_headers(std::uint64_t inputs, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Mutator mutator(seed);
  std::uint64_t accepted = 0;
  for (std::uint64_t i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    Bytes bytes = file_seeds()[i % file_seeds().size()];
    mutator.mutate(bytes);
    accepted += parse(bytes) ? 1U : 0U;
  }
  // Both outcomes must occur, or the mutations show nothing.
  EXPECT_GT(accepted, inputs / 20);
  EXPECT_LT(accepted, inputs - inputs / 20);
}

void damage_sidecars(std::uint64_t inputs, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Mutator mutator(seed);
  const std::string good = sidecar_text("uint32", 5, 128256);
  const auto good_bytes = std::as_bytes(std::span(good));
  const Bytes original(good_bytes.begin(), good_bytes.end());
  std::uint64_t refused = 0;
  for (std::uint64_t i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    Bytes bytes = original;
    mutator.mutate(bytes);
    const std::unique_ptr<char[]> text(new char[bytes.size()]);
    std::transform(bytes.begin(), bytes.end(), text.get(),
                   [](std::byte byte) { return static_cast<char>(byte); });
    const auto sidecar = parse_token_sidecar({text.get(), bytes.size()});
    if (!sidecar.ok()) {
      ++refused;
      expect_sentence(sidecar.error());
    } else {
      EXPECT_GE(sidecar->token_count, 1U);
      EXPECT_GE(sidecar->vocab_size, 1U);
    }
  }
  EXPECT_GT(refused, inputs / 2);
}

// Goes through the file system, with sidecar files of every kind.
void damage_files(std::uint64_t inputs, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Mutator mutator(seed);
  const aio::TemporaryFolder folder;
  const std::string path = folder.file("text.bin");
  for (std::uint64_t i = 0; i < inputs && !testing::Test::HasFailure(); ++i) {
    Bytes bytes = file_seeds()[i % file_seeds().size()];
    const std::string sidecar =
        sidecar_text(i % 2 == 0 ? "uint16" : "uint32", bytes.size() / (i % 2 == 0 ? 2 : 4), 50257);
    mutator.mutate(bytes);
    write_file(path, bytes);
    if (i % 3 == 0) {
      write_text(path + ".json", sidecar.substr(0, sidecar.size() - mutator.below(3)));
    } else {
      std::filesystem::remove(path + ".json");
    }
    const auto file = TokenFile::open(path, {});
    if (!file.ok()) {
      expect_sentence(file.error());
      continue;
    }
    std::vector<std::int64_t> tokens(file->token_count());
    ASSERT_OK(file->copy(0, tokens));
    const auto largest =
        static_cast<std::uint64_t>(*std::max_element(tokens.begin(), tokens.end()));
    ASSERT_OK(file->check_vocab(largest + 1));
    ASSERT_FALSE(largest > 0 && file->check_vocab(largest).ok());
  }
}

TEST(TokenFuzz, FiveHundredDamagedInputsOfEachKind) {
  damage_headers(500, 11);
  damage_sidecars(500, 12);
  damage_files(500, 13);
}

TEST(LongTokenFuzz, TenThousandDamagedInputsOfEachKind) {
  damage_headers(10000, 21);
  damage_sidecars(10000, 22);
  damage_files(10000, 23);
}

TEST(TokenFuzz, EveryBitOfAHeaderFlipped) {
  const Bytes good = llmc_file(20240520, 1, counting_tokens(50));
  for (std::size_t bit = 0; bit < 8 * kTokenHeaderBytes; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    // Without its magic it is a raw file, except for bit 1, which makes the magic of llm.c's
    // questions. A wrong version or count is refused; the rest of a header is unused.
    EXPECT_EQ(parse(bytes), (bit < 32 && bit != 1) || bit >= 96) << "bit " << bit;
  }
}

}  // namespace
}  // namespace sluice::data
