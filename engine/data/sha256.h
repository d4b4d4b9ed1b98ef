// SHA-256 (FIPS 180-4), for fingerprints that Python's hashlib gives too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::data {

class Sha256 {
 public:
  void update(std::string_view bytes);
  // 64 hexadecimal digits of everything so far; the last call.
  std::string finish();

 private:
  static constexpr std::size_t kBlockBytes = 64;
  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlockBytes> open_{};  // an unfinished block
  std::size_t open_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace sluice::data
