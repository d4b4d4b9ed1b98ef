// The tokenizer of byte tokens, as a tokenizer.json: each byte is the token of its number, and 256
// ends a text. Bytes are written there in the alphabet that byte-level BPEs have in common, in
// which every byte is a letter that can be seen; there are no merges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::engine {

inline constexpr std::int64_t kByteEndOfText = 256;
inline constexpr std::string_view kEndOfTextName = "<|endoftext|>";

std::string byte_tokenizer_json();

}  // namespace sluice::engine
