// The tokenizer of byte tokens, as a tokenizer.json: each byte is the token of its value, and 256
// ends a text. Bytes are written in the common alphabet of byte-level BPEs, where every byte is a
// printable letter. There are no merges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::engine {

inline constexpr std::int64_t kByteEndOfText = 256;
inline constexpr std::string_view kEndOfTextName = "<|endoftext|>";

std::string byte_tokenizer_json();

}  // namespace sluice::engine
