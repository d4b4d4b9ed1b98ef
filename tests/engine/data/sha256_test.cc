#include "engine/data/sha256.h"

#include <gtest/gtest.h>

namespace sluice::data {
namespace {

std::string digest(const std::string& text, std::size_t piece = 1000) {
  Sha256 hash;
  for (std::size_t first = 0; first < text.size(); first += piece)
    hash.update(std::string_view(text).substr(first, piece));
  return hash.finish();
}

// NIST's examples for FIPS 180-4, and values from hashlib.
TEST(Sha256, GivesTheStandardsDigests) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  for (const std::size_t piece : {1U, 63U, 64U, 65U, 1'000'000U})
    EXPECT_EQ(digest(million, piece),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace sluice::data
