// Made by make_nf4_goldens.py with bitsandbytes 0.50.2. Hashes are FNV-1a.
#pragma once

#include <cstdint>

namespace sluice::offload::golden {

struct Hashes {
  std::uint64_t codes, scales, values;
};
inline constexpr Hashes kNf4 = {0xf55abba583822d06, 0x1707b2e400422e21, 0x9d53c828861648c3};
inline constexpr Hashes kBf16 = {0x0c28a4319070f6e6, 0x0c34fae1aa9b270d, 0xd55e265b739e9d17};
inline constexpr Hashes kBf16Mixed = {0x48ff4fa3198d65c4, 0xe9caa8d73406b361, 0x2c0b709ad851efb7};
inline constexpr Hashes kFp16 = {0xc9be7fa4941a1343, 0xe963f92e03b5c92d, 0x23b003b0e0a8d4aa};
inline constexpr Hashes kFp16Mixed = {0xc3d4cbffc96cead8, 0x5947a99ebcb4a085, 0x03f6bc557d32139e};
inline constexpr Hashes kNf4Double = {0xf55abba583822d06, 0xfafaa67231019a2c, 0xd77ddab0d2699924};
inline constexpr float kOffset = 0.389245361F;
inline constexpr float kGroupScales[] = {1.60880148F, 1.18912375F};
inline constexpr Hashes kDynamic8 = {0xcbf29ce484222325, 0xcbf29ce484222325, 0xd677f22a96665bc4};

}  // namespace sluice::offload::golden
